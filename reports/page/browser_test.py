"""The page in headless Chromium: what a person sees, measured in pixels. Fails without Chromium instead of being skipped:
python3 -m unittest browser_test"""
import dataclasses
import html
import json
import pathlib
import subprocess
import tempfile
import unittest
import urllib.parse

import results
import write_page
from sample_results import full_results

DESKTOP, PHONE = 1100, 390  # widths in CSS pixels
HEIGHT = 3600
# Runs at the end of the page, in a frame, and stores its measurements on the root element of the window, because --dump-dom
# prints the DOM and nothing else.
MEASURE = """<script>{
  const all = (root, what) => [...root.querySelectorAll(what)];
  const box = element => {
    const {left, top, right, bottom} = element.getBoundingClientRect();
    return {left, top, right, bottom};
  };
  const inside = (a, b) => a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2;
  const part = rect => ({...box(rect), fill: getComputedStyle(rect).fill, opacity: getComputedStyle(rect).opacity,
                         style: rect.getAttribute('class'), name: rect.textContent});
  const chart = svg => {
    const outside = box(svg), texts = all(svg, 'text').map(text => ({words: text.textContent, ...box(text)}));
    const wrong = texts.filter(text => !inside(text, outside)).map(text => text.words + ' is outside');
    texts.forEach((a, i) => texts.slice(i + 1).forEach(b => { if (meet(a, b)) wrong.push(a.words + ' is over ' + b.words); }));
    return {id: svg.id, scale: (outside.right - outside.left) / svg.viewBox.baseVal.width, wrong_texts: wrong,
            parts: all(svg, 'rect').map(part)};
  };
  const seen = {inner_width: innerWidth, scroll_width: document.documentElement.scrollWidth,
    background: getComputedStyle(document.body).backgroundColor, color: getComputedStyle(document.body).color,
    sections: all(document, 'section').map(section => section.innerText),
    foreign: all(document, 'script, img, link, iframe').length - 1};
  all(document, 'details').forEach(details => details.open = true);
  seen.scroll_width_unfolded = document.documentElement.scrollWidth;
  seen.tables = all(document, 'table').map(table => table.innerText);
  seen.charts = all(document, 'svg').filter(svg => svg.getBoundingClientRect().width > 0).map(chart);
  parent.document.documentElement.dataset['seen' + window.name] = encodeURIComponent(JSON.stringify(seen));
}</script>"""


@dataclasses.dataclass
class Views:
    seen: list[dict]  # the measurements of each page
    console: list[str]


def opened(pages, width, is_dark=False):
    """Opens the pages side by side, in frames: a window of Chromium is at least 500 pixels wide."""
    frames = [f'<iframe name="{index}" style="border:0" width="{width}" height="{HEIGHT}" '
              f'srcdoc="{html.escape(page.replace("</body>", MEASURE + "</body>"))}"></iframe>'
              for index, page in enumerate(pages)]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "page.html"
        file.write_text(f'<!doctype html><meta charset="utf-8"><body style="margin:0;white-space:nowrap">{"".join(frames)}')
        # 0 is dark in Chromium's enumeration of colour schemes.
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
                   "--disable-background-networking", "--enable-logging=stderr", f"--user-data-dir={folder}/profile",
                   f"--window-size={max(width, 500)},{HEIGHT}", "--dump-dom",
                   *(["--blink-settings=preferredColorScheme=0"] if is_dark else []), f"file://{file}"]  # fmt: skip
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        except FileNotFoundError as error:
            raise RuntimeError("chromium was not found: on Debian, apt-get install chromium") from error
    seen = []
    for index in range(len(pages)):
        _, _, rest = run.stdout.partition(f'data-seen{index}="')
        seen.append(json.loads(urllib.parse.unquote(rest.partition('"')[0])))
    return Views(seen, [line for line in run.stderr.splitlines() if ":CONSOLE:" in line])


class BrowserTest(unittest.TestCase):
    def expect_sound(self, views, width):
        self.assertEqual(views.console, [])
        for seen in views.seen:
            self.assertEqual(seen["inner_width"], width)
            self.assertLessEqual(seen["scroll_width"], width, "the page is wider than the screen")
            self.assertLessEqual(seen["scroll_width_unfolded"], width, "its tables are wider than the screen")
            self.assertEqual(seen["foreign"], 0)
            for chart in seen["charts"]:
                self.assertEqual(chart["wrong_texts"], [], chart["id"])
                self.assertGreaterEqual(chart["scale"], 0.9, f"{chart['id']}: letters of less than 11 pixels")

    def test_pages_fit_every_screen_in_light_and_dark(self):
        pages = [write_page.page_of(full_results()), write_page.page_of(results.Results())]
        colours = {}
        for width, is_dark in ((DESKTOP, False), (DESKTOP, True), (PHONE, False)):
            views = opened(pages, width, is_dark)
            self.expect_sound(views, width)
            full, empty = views.seen
            self.assertIn("160 cases, ✓ 0 differences", full["sections"][0])
            self.assertEqual([len(full["sections"]), len(empty["sections"])], [6, 6])
            self.assertEqual([len(full["tables"]), len(empty["tables"])], [15, 0])
            colours[is_dark] = full["background"], full["color"]
        self.assertEqual(colours, {False: ("rgb(246, 247, 249)", "rgb(27, 31, 36)"),
                                   True: ("rgb(14, 17, 22)", "rgb(230, 234, 240)")})  # fmt: skip

    def test_distributions_are_drawn_by_their_shares(self):
        page = write_page.page_of(results.Results(generators=full_results().generators))
        for width, chart_id in ((DESKTOP, "generator-0-chart"), (PHONE, "generator-0-narrow-chart")):
            views = opened([page], width)
            self.expect_sound(views, width)
            (chart,) = views.seen[0]["charts"]
            self.assertEqual(chart["id"], chart_id)
            self.assertEqual([part["style"] for part in chart["parts"]],
                             ["value-even", "value-odd", "value-even", "value-odd", "value-even"])  # fmt: skip
            even, odd = chart["parts"][:2]
            lengths = [part["right"] - part["left"] for part in (even, odd)]
            self.assertAlmostEqual(lengths[1] / lengths[0], 1100 / 900, delta=0.02)
            self.assertAlmostEqual(even["bottom"] - even["top"], 16 * chart["scale"], delta=1)
            self.assertEqual(odd["name"], "pads true: 55 %")
            self.assertEqual([even["fill"], even["opacity"], odd["opacity"]], ["rgb(0, 114, 178)", "1", "0.5"])

    def test_a_broken_page_is_noticed(self):
        """Tests the checks themselves: the page breaks each rule that the tests above check."""
        broken = ("<!doctype html><svg viewBox='0 0 9 9'><rect x='nan'/><text y=9>a</text><text y=9>b</text></svg>"
                  "<div style='width:600px'>wide</div><script>missing()</script></body>")  # fmt: skip
        views = opened([broken], PHONE)
        self.assertEqual(len(views.console), 2, views.console)
        self.assertGreaterEqual(views.seen[0]["scroll_width"], 600)
        self.assertEqual(views.seen[0]["foreign"], 1)
        self.assertIn("a is over b", views.seen[0]["charts"][0]["wrong_texts"])


if __name__ == "__main__":
    unittest.main()
