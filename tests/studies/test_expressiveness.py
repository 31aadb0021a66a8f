from research import expressiveness


def test_the_layer_reaches_the_best_monotone_fit_of_both_figures():
    result = expressiveness.run()
    assert result["largest_distance"]["square"] < 0.01
    assert result["largest_distance"]["square that falls"] < 0.01
    curves = result["curves"]
    assert len({len(column) for column in curves.values()}) == 1


def test_the_second_target_cannot_be_followed_by_anything_monotone():
    x = expressiveness.np.linspace(0.001, 0.999, 999)
    y = expressiveness.square_that_falls(x)
    best = expressiveness.best_monotone_fit(y)
    assert abs(best - y).max() > 0.03
    assert (best[1:] >= best[:-1]).all()


def test_the_picture_shows_what_was_measured(tmp_path):
    path = tmp_path / "figures.png"
    expressiveness.chart(expressiveness.run(steps=20, points=49)).save(path)
    assert path.read_bytes().startswith(b"\x89PNG")
