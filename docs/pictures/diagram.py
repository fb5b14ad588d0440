"""Draw docs/pictures/cluster.svg, the README's diagram: `make pictures`.

The drawing is a pure function of this file, so a test can tell whether the committed picture is the
one that it draws. Colours follow the reader's light or dark theme.
"""

from __future__ import annotations

from pathlib import Path

PICTURE = Path(__file__).with_name("cluster.svg")
WIDTH, HEIGHT = 880, 356

STYLE = """\
  <style>
    .paper { fill: #ffffff } .ink { fill: #1f2328 } .soft { fill: #59636e }
    .box { fill: #f6f8fa; stroke: #8c959f } .leader { fill: #ddf4ff; stroke: #0969da }
    .quorum { fill: #fbefff; stroke: #8250df } .disk { fill: #ffffff; stroke: #8c959f }
    .line { stroke: #59636e } .copy { stroke: #0969da } .vote { stroke: #8250df }
    .head { fill: #59636e } .copyhead { fill: #0969da } .votehead { fill: #8250df }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #0d1117 } .ink { fill: #f0f6fc } .soft { fill: #9198a1 }
      .box { fill: #151b23; stroke: #656c76 } .leader { fill: #0c2d4a; stroke: #4493f8 }
      .quorum { fill: #271a40; stroke: #ab7df8 } .disk { fill: #0d1117; stroke: #656c76 }
      .line { stroke: #9198a1 } .copy { stroke: #4493f8 } .vote { stroke: #ab7df8 }
      .head { fill: #9198a1 } .copyhead { fill: #4493f8 } .votehead { fill: #ab7df8 }
    }
    text { font: 14px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif }
    .name { font-weight: 600; font-size: 15px } .small { font-size: 12px }
    .mono { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
  </style>
"""

BROKERS = ((356, "broker 1"), (534, "broker 2"), (712, "broker 3"))
BROKER_TOP, BROKER_WIDTH, BROKER_HEIGHT = 64, 140, 132
CONTROLLERS = ((400, "101"), (578, "102"), (756, "103"))
CONTROLLER_TOP, CONTROLLER_WIDTH, CONTROLLER_HEIGHT = 274, 52, 40


def text(x: float, y: float, words: str, kind: str = "ink", anchor: str = "middle") -> str:
    """Return one line of text."""
    return f'  <text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{words}</text>\n'


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    """Return a rectangle with round corners."""
    return (
        f'  <rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" '
        f'class="{kind}" stroke-width="1.4"/>\n'
    )


def arrow(path: str, kind: str, *, dashed: bool = False, both: bool = False) -> str:
    """Return a line with a head at its end, or at both ends."""
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    start = f' marker-start="url(#{kind}-start)"' if both else ""
    return (
        f'  <path d="{path}" class="{kind}" fill="none" stroke-width="1.6"{dashes}{start} '
        f'marker-end="url(#{kind}-end)"/>\n'
    )


def heads() -> str:
    """Return the arrow heads of the three kinds of lines."""
    kinds = (("line", "head"), ("copy", "copyhead"), ("vote", "votehead"))
    return "".join(
        f'    <marker id="{line}-{end}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="{orient}"><path d="M0 0 L8 4 L0 8 z" class="{head}"/></marker>\n'
        for line, head in kinds
        for end, orient in (("end", "auto"), ("start", "auto-start-reverse"))
    )


def client() -> str:
    """Return the clients on the left, and their lines to each broker."""
    drawn = box(16, 74, 196, 112, "box")
    drawn += text(114, 100, "any HTTP client", "ink name")
    drawn += text(114, 124, "curl", "soft mono")
    drawn += text(114, 145, "REST Proxy clients", "soft")
    drawn += text(114, 166, "PySpark", "soft")
    drawn += arrow("M212 108 C260 92 300 98 354 104", "line")
    drawn += arrow("M212 92 C310 26 500 22 592 62", "line")
    drawn += arrow("M212 82 C330 -6 650 -10 770 62", "line")
    return drawn + text(282, 136, "ask any broker", "soft small")


def brokers() -> str:
    """Return the brokers with their disks, and the copies of one partition."""
    drawn = ""
    for place, (x, name) in enumerate(BROKERS):
        middle = x + BROKER_WIDTH / 2
        drawn += box(x, BROKER_TOP, BROKER_WIDTH, BROKER_HEIGHT, "leader" if place == 0 else "box")
        drawn += text(middle, BROKER_TOP + 24, name, "ink name")
        role = "leads orders:0" if place == 0 else "follows orders:0"
        drawn += text(middle, BROKER_TOP + 44, role, "soft small")
        drawn += box(x + 18, BROKER_TOP + 60, BROKER_WIDTH - 36, 52, "disk")
        drawn += text(middle, BROKER_TOP + 82, "log on disk", "ink small")
        drawn += text(middle, BROKER_TOP + 99, "synced ✓", "soft small")
    drawn += arrow("M478 150 L550 150", "copy")
    drawn += arrow("M426 178 C470 222 740 222 782 180", "copy")
    return drawn + text(606, 231, "answered when every in-sync replica is synced", "soft small")


def controllers() -> str:
    """Return the quorum below the brokers, and the metadata that brokers follow."""
    drawn = box(356, 256, 496, 78, "quorum")
    drawn += text(604, 327, "3 controllers: Raft-replicated metadata, no ZooKeeper", "soft small")
    for x, name in CONTROLLERS:
        drawn += box(x, 266, CONTROLLER_WIDTH, CONTROLLER_HEIGHT, "disk")
        drawn += text(x + CONTROLLER_WIDTH / 2, 291, name, "ink mono")
    drawn += arrow("M454 286 L576 286", "vote", both=True)
    drawn += arrow("M632 286 L754 286", "vote", both=True)
    drawn += arrow("M386 254 L386 200", "vote", dashed=True)
    drawn += arrow("M828 254 L828 200", "vote", dashed=True)
    drawn += text(346, 232, "leaders, epochs", "soft small", "end")
    return drawn + text(346, 248, "and configs", "soft small", "end")


def picture() -> str:
    """Return the whole SVG."""
    title = (
        "A client sends a request to any of three brokers; the leader of a partition copies "
        "records to its followers and answers when every in-sync replica has synced them; three "
        "controllers replicate the metadata."
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{title}">\n'
        f"{STYLE}  <defs>\n{heads()}  </defs>\n"
        f'  <rect width="{WIDTH}" height="{HEIGHT}" rx="10" class="paper"/>\n'
        f"{client()}{brokers()}{controllers()}</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    print(f"drawn {PICTURE.name}")
