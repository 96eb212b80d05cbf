"""Plots as SVG, written by hand so that nothing needs to be installed: grouped bars on a
logarithmic axis, and histograms as steps."""

import html
import math

COLOURS = {"clgrpc": "#1b6ca8", "clgrpc :share": "#4f9bd0", "clgrpc :threads": "#12456b",
           "clgrpc :on LOOP": "#7fc3c9", "clgrpc TCP": "#9fb8cc", "grpc-go": "#e08e1b",
           "grpchan": "#e08e1b", "grpc-go bufconn": "#b5651d", "grpc-go TCP": "#e6c79c",
           "Go": "#e08e1b", "tonic": "#7a9e3b", "nghttpd": "#8c8c8c"}
LEFT, TOP, BOTTOM = 64, 56, 64
FONT = "font-family='sans-serif' font-size='11'"


class Drawing:
    """Shapes on a white ground."""

    def __init__(self, width, height, title):
        self.width, self.height, self.shapes = width, height, []
        self.text(LEFT, 20, title, anchor="start", size=14)

    def text(self, x, y, text, anchor="middle", size=11, turn=0):
        turned = " transform='rotate(%d %.1f %.1f)'" % (turn, x, y) if turn else ""
        self.shapes.append("<text x='%.1f' y='%.1f' text-anchor='%s' font-size='%d'%s>%s</text>" % (
            x, y, anchor, size, turned, html.escape(text)))

    def line(self, x1, y1, x2, y2, colour="#ddd"):
        self.shapes.append("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='%s'/>" % (
            x1, y1, x2, y2, colour))

    def rectangle(self, x, y, width, height, colour):
        self.shapes.append("<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='%s'/>" % (
            x, y, width, height, colour))

    def path(self, points, colour):
        self.shapes.append("<polyline points='%s' fill='none' stroke='%s' stroke-width='1.6'/>" % (
            " ".join("%.1f,%.1f" % point for point in points), colour))

    def legend(self, names):
        for position, name in enumerate(names):
            x = LEFT + 100 * position
            self.rectangle(x, 30, 10, 10, COLOURS.get(name, "#444"))
            self.text(x + 15, 39, name, anchor="start")

    def source(self):
        return "\n".join([
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' %s fill='#222'>" % (
                self.width, self.height, FONT),
            "<rect width='100%' height='100%' fill='white'/>", *self.shapes, "</svg>", ""])


def label(value):
    return "%.*f" % (0 if value >= 100 else 1 if value >= 10 else 2, value)


def ticks(low, high):
    """The powers of ten, doubled and quintupled, from LOW to HIGH."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [factor * 10.0 ** power for power in powers for factor in (1, 2, 5)
            if low <= factor * 10.0 ** power <= high]


def bars(title, axis, groups):
    """GROUPS is a list of (name, {side: value}); values of None are left out."""
    names = list(dict.fromkeys(side for _, sides in groups for side in sides))
    found = [value for _, sides in groups for value in sides.values() if value]
    low, high = min(found) / 2, max(found) * 1.3
    group_width = max(70, 26 * len(names) + 18)
    drawing = Drawing(LEFT + group_width * len(groups) + 20, 360, title)
    floor = drawing.height - BOTTOM

    def level(value):
        return floor - (floor - TOP) * math.log(value / low) / math.log(high / low)

    drawing.legend(names)
    for tick in ticks(low, high):
        drawing.line(LEFT, level(tick), drawing.width - 20, level(tick))
        drawing.text(LEFT - 6, level(tick) + 4, "%g" % tick, anchor="end")
    for position, (name, sides) in enumerate(groups):
        x = LEFT + group_width * position + 9
        for place, side in enumerate(names):
            value = sides.get(side)
            if value:
                drawing.rectangle(x + 26 * place, level(value), 22, floor - level(value),
                                  COLOURS.get(side, "#444"))
                drawing.text(x + 26 * place + 11, level(value) - 3, label(value), size=9)
        lines = name.split(", ", 1)
        for number, line in enumerate(lines):
            drawing.text(x + 13 * len(names), floor + 16 + 13 * number, line, size=10)
    drawing.line(LEFT, floor, drawing.width - 20, floor, "#222")
    drawing.text(16, (TOP + floor) / 2, axis, turn=-90)
    drawing.text(drawing.width - 20, drawing.height - 8, "logarithmic axis, less is better",
                 anchor="end", size=9)
    return drawing.source()


def histograms(title, axis, edges, shares, marks):
    """Steps: EDGES of the buckets, one more than each list of SHARES, {side: list}; MARKS, {side:
    {name: value}}, stand in a lane for each side below the axis."""
    drawing = Drawing(760, 380 + 16 * len(shares), title)
    floor, right = 380 - BOTTOM, drawing.width - 20
    low, high = edges[0], edges[-1]
    top = max(max(values) for values in shares.values()) * 1.1

    def across(value):
        value = min(max(value, low), high)
        return LEFT + (right - LEFT) * math.log(value / low) / math.log(high / low)

    def level(share):
        return floor - (floor - TOP) * share / top

    drawing.legend(shares)
    for tick in ticks(low, high):
        drawing.line(across(tick), TOP, across(tick), floor)
        drawing.text(across(tick), floor + 14, "%g" % tick, size=9)
    for lane, (side, values) in enumerate(shares.items()):
        colour = COLOURS.get(side, "#444")
        points = []
        for position, share in enumerate(values):
            points += [(across(edges[position]), level(share)),
                       (across(edges[position + 1]), level(share))]
        drawing.path(points, colour)
        for name, value in marks[side].items():
            y = floor + 34 + 16 * lane
            drawing.rectangle(across(value) - 2, y - 9, 4, 10, colour)
            drawing.text(across(value) + 5, y, name, anchor="start", size=9)
    drawing.line(LEFT, floor, right, floor, "#222")
    drawing.text((LEFT + right) / 2, drawing.height - 12, axis)
    drawing.text(16, (TOP + floor) / 2, "share of the calls per bucket", turn=-90)
    return drawing.source()
