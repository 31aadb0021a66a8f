"""Claims of section 3 of the paper, about the layer itself: what it can represent, its defaults, its constraint.

Explanations are keyed by the outcome they are written for; each says what the design makes true, not a figure.
"""

from __future__ import annotations

from research.claim import HELD, NOT, PARTLY, Claim

LAYER = (
    Claim(
        "The layer can represent any monotone curve, and finds the best monotone fit of one that is not",
        "section 3.4, figure 2",
        "expressiveness",
        ("square that falls", "square is"),
        "Two targets, as in the paper.",
        {
            HELD: "Two targets show it for two. That a piecewise-linear curve comes as near as one likes to any "
            "monotone one, if only buckets are narrow enough, is mathematics."
        },
        universal=True,
    ),
    Claim(
        "The output never falls as the input rises",
        "section 3.3",
        "expressiveness",
        ("no fitted curve falls",),
        "The same two targets, one of which falls.",
        {HELD: "Slopes are never negative, whatever the weights; the tests try arbitrary ones."},
        universal=True,
    ),
    Claim(
        "Without the constraint the layer fits any continuous shape",
        "section 3.3",
        "expressiveness",
        ("without the constraint",),
        "The target that falls.",
        {
            HELD: "Slopes of either sign follow it up and down. One target shows it for one; that narrow buckets "
            "follow any continuous curve is mathematics."
        },
        universal=True,
    ),
    Claim(
        "Beyond logits of -17 and 8, probability and gradient change by less than 1e-4 per unit",
        "section 3.2, footnote",
        "stated-numbers",
        ("above 8", "below -17"),
        "Arithmetic.",
        {
            PARTLY: "True at the lower end, not at the upper: the footnote itself gives a derivative of 3.35e-4 at 8. "
            "Clipping there still costs no probability more than that.",
        },
    ),
    Claim(
        "The layer has about 125 buckets",
        "section 5.7",
        "stated-numbers",
        ("buckets of width 0.2", "buckets of width"),
        "Arithmetic, with the formula of section 3.2.",
        {
            PARTLY: "That is so for the width of .2 in the listing of appendix C; the default that section 3.2 states, "
            ".05, makes four times as many.",
        },
    ),
    Claim(
        "A model can have O/E near 1 at every position with no relevance discrimination at all",
        "appendix A",
        "stated-numbers",
        ("predicting the mean rate", "and puts no items"),
        "Arithmetic, under position bias.",
        {HELD: "It need only predict the mean rate of each position. So O/E is no measure of debiasing."},
        universal=True,
    ),
    Claim(
        "The constraint regularises the layer: it prevents local over-fitting where data are sparse",
        "section 3.5",
        "regularisation",
        (
            "same training: layer, ReLU, has a lower log loss than without the constraint (100 rows)",
            "same training: layer, ReLU, has a lower log loss",
            "same training: layer, softplus, has a lower log loss",
            "each tuned: layer, ReLU, has a lower log loss",
            "each tuned: layer, softplus, has a lower log loss",
            "both as tuned without it: layer, softplus, has a lower log loss",
            "both as tuned with it: layer, softplus, has a lower log loss",
        ),
        "The layer of one input, simulated, 100 to 10,000 rows of a monotone truth; with the same training, with each "
        "tuned on other seeds, and at equal settings where those that were chosen differ.",
        {
            HELD: "It does so with the same training and beside early stopping.",
            PARTLY: "With the same training it does, and the more so the fewer the rows. Otherwise it depends on the "
            "number of rows, on whether it is ReLU or softplus, and on the rate and the steps: stopping early "
            "regularises too, and where both layers stop before a slope reaches zero they are the same curve.",
            NOT: "The layer without the constraint does as well.",
        },
    ),
    Claim(
        "The same of a lattice of several inputs",
        "sections 3.5 and 6, as we read them",
        "lattice",
        (
            "lower log loss than an unconstrained lattice (simulated, 500",
            "lower log loss than an unconstrained lattice",
        ),
        "Our lattice with and without the constraint: 500 to 20,000 rows, simulated (where the truth is monotone) and "
        "real.",
        {
            HELD: "It does so in every world here; we have not tested by what means.",
            PARTLY: "It does so in some of these worlds and costs log loss in others, even where the truth is "
            "monotone; we have not tested why. Both have settings tuned on held-out rows, which regularises too.",
            NOT: "Both lattices have settings tuned on held-out rows, which regularises too.",
        },
    ),
    Claim(
        "Learning the layer on a separate holdout makes it more robust under shift than joint training",
        "section 3.2",
        "separate-layer",
        ("over-fitted, rates move, new rows", "over-fitted", "well fitted"),
        "A network that over-fits and one that does not; rates or features move, held-out rows are of before or after. "
        "Judged by what the shift adds to the loss, since a layer learned apart loses more even where nothing moves.",
        {
            HELD: "A shift adds less to the loss of a layer learned apart in every setting; why is not tested.",
            PARTLY: "It depends on what moves and on when held-out rows are from (the table); why is not tested. Where "
            "held-out rows are from after a move of the rates, the layer learned apart is fitted to these alone, "
            "while the joint one has them as a fifth of its rows.",
            NOT: "A shift adds no less to the loss of a layer learned apart; why is not tested.",
        },
    ),
)
