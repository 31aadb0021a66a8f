"""Pooling over predicted positions: verdicts either way, and which pooling the note names."""

from __future__ import annotations

from made_up_numbers import done, lost

from research import position_prediction


def pooled(losses, curve=0.3):
    """The verdict on predicted positions whose every figure is that of the method, or that of the served curve."""
    number = {f"{metric} {name}": value for name, value in losses.items() for metric in position_prediction.METRICS}
    return position_prediction.summarise(done(position_prediction, lambda setting, key: number.get(key, curve)))


def test_position_prediction_verdict_goes_either_way():
    from_x = {"embeddings, P(c | x)": 0.2, "probabilities, P(c | x)": 0.1}
    assert pooled(from_x | {"embeddings, P(c | r)": 0.25}).held == "held"
    papers = pooled(from_x | {"embeddings, P(c | r)": 0.4, "probabilities, P(c | r)": 0.31})
    assert {says.partition(" (")[0] for says in lost(papers)} == {
        "the paper's pooling has a lower log loss than the served curve",
        "the paper's pooling is closer by the logger's feature than the served curve",
    }
    relevance = lost(
        pooled({"embeddings, P(c | r)": 0.2, "embeddings, P(c | x)": 0.25, "probabilities, P(c | x)": 0.1})
    )
    assert {says.partition(" (")[0] for says in relevance} == {
        "embeddings pooled by positions from the features have a lower log loss than by those from relevance"
    }  # like is compared with like: the pooling is the same


def test_the_note_on_predicted_positions_says_which_of_them_hurt():
    losses = {"embeddings, P(c | x)": 0.2, "probabilities, P(c | x)": 0.1, "embeddings, P(c | r)": 0.4}
    note = pooled(losses | {"probabilities, P(c | r)": 0.31}).note
    assert "from the features lowers the log loss in 4 of 4 worlds, all beyond chance (by 0.1000" in note
    assert "averaging probabilities by these lowers the log loss in 4 of 4" in note
    assert "as the paper writes it, raises the log loss in 4 of 4 worlds, all beyond chance (by 0.1000" in note
    assert "averaging probabilities by those raises the log loss in 4 of 4 worlds, all beyond chance (by 0.0100" in note
    other = pooled(losses | {"probabilities, P(c | r)": 0.29}).note
    assert "averaging probabilities by those lowers the log loss" in other


def test_the_note_says_how_pooling_compares_with_a_network_that_is_never_told_a_position():
    losses = {"embeddings, P(c | x)": 0.2, "probabilities, P(c | x)": 0.1, "embeddings, P(c | r)": 0.4}
    note = pooled(losses | {"network, no position": 0.15}).note
    network = note.partition("Against a network of the features that is never told a position, ")[2]
    from_x, by_these, papers = network.partition(". ")[0].split("; ")
    assert from_x.startswith("pooling embeddings by positions predicted from the features raises the log loss")
    assert by_these.startswith("averaging probabilities by these lowers the log loss in 4 of 4 worlds, all")
    assert "as the paper writes it, raises the log loss in 4 of 4" in papers
    assert "(by 0.2500" in papers
    assert "is learned alike in all but that network" in note
