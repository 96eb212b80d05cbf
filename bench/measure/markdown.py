"""Tables in Markdown."""


def figure(value):
    """VALUE with three digits that count, or a dash for none."""
    if value is None:
        return "–"
    if abs(value) >= 100:
        return "{:,.0f}".format(value)
    return "%.*f" % (1 if abs(value) >= 10 else 2, value)


def values(row, key):
    """The medians of KEY in ROW by the name of the side."""
    return {name: side["median"].get(key) for name, side in row["sides"].items()}


def table(titles, lines, text_columns=1):
    """A table with the column TITLES and LINES; the first TEXT_COLUMNS hold text, the others
    figures."""
    rule = "|" + "---|" * text_columns + "--:|" * (len(titles) - text_columns)
    return "\n".join(["| %s |" % " | ".join(titles), rule,
                      *("| %s |" % " | ".join(line) for line in lines), ""])


def comparison(rows, title, describe, figures):
    """A table with a line for each side of each of ROWS, and the columns FIGURES, (key, name, …).
    Behind the first of them stands the ratio of ours to the line's."""
    (first, first_name, *_), *others = figures
    lines = []
    for row in rows:
        ours = next(iter(row["sides"].values()))["median"][first]
        for position, (name, side) in enumerate(row["sides"].items()):
            median = side["median"]
            lines.append(["" if position else describe(row), name, figure(median[first]),
                          "" if position == 0 else "%.3f" % (ours / median[first]),
                          *(figure(median.get(key)) for key, *_ in others)])
    titles = [title, "", first_name, "ours to it", *(name for _, name, *_ in others)]
    return table(titles, lines, text_columns=2)
