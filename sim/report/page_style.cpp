// The style sheet of the page. Charts refer to colours by class, so the media query for dark mode changes them
// without redrawing. The colours of a step's parts are checked for colour-blind readers by report_browser_test.
#include "sim/report/sections.hpp"

namespace accel::sim::report {

// Order of the rules: colours as variables (light, then dark), page, sections, charts, narrow screens, tables.
// A new colour needs a value in both modes. Rules for `.wide` and `.narrow` select one of the two drawings of
// each chart.
const std::string_view kPageStyle = R"css(
:root {
  color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --ink: #1b1f24; --soft: #59636e; --line: #dfe3e8; --grid: #e9ecf0;
  --compute: #0072b2; --exposed: #e69f00; --waiting: #b5446e; --slowest: #1b1f24;
  --good: #00785a; --warn: #8f5a00; --bad: #b3261e; --good-paper: #e2f4ee; --warn-paper: #fdf1d8; --bad-paper: #fce8e6;
  --gap: #d55e0033;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #0e1116; --card: #171b22; --ink: #e6eaf0; --soft: #9aa4b1; --line: #2b323c; --grid: #252b34;
    --compute: #56b4e9; --exposed: #f0b429; --waiting: #b5446e; --slowest: #ffffff;
    --good: #5fd0aa; --warn: #f2bf5e; --bad: #ff8a80;
    --good-paper: #12332a; --warn-paper: #3a2c10; --bad-paper: #43191a;
    --gap: #d55e0066;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
main { max-width: 1000px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 28px; line-height: 1.25; margin: 0 0 10px; overflow-wrap: anywhere; letter-spacing: -0.01em; }
h2 { font-size: 18px; margin: 0 0 8px; }
p { margin: 0 0 12px; overflow-wrap: anywhere; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 13px; }
.verdict { display: inline-block; margin: 0 0 18px; padding: 3px 12px;
  border-radius: 99px; font-size: 14px; font-weight: 600; }
.verdict.good { color: var(--good); background: var(--good-paper); }
.verdict.warn { color: var(--warn); background: var(--warn-paper); }
.verdict.bad { color: var(--bad); background: var(--bad-paper); }
section, .card {
  background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 18px 20px; margin: 0 0 16px;
}
section > p { color: var(--soft); font-size: 14.5px; }
section > :last-child { margin-bottom: 0; }
.empty { display: flex; flex-wrap: wrap; align-items: baseline; gap: 0 12px; padding-top: 12px; padding-bottom: 12px; }
.empty h2 { margin: 0; }
#diagnosis:has(pre), #difference:has(pre) { border-left: 4px solid var(--bad); }
#findings:has(li) { border-left: 4px solid var(--exposed); }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 210px), 1fr)); gap: 12px 24px; }
.facts div { min-width: 0; }
.facts div.long { grid-column: 1 / -1; }
.facts dt { color: var(--soft); font-size: 13px; }
.facts dd { margin: 0; overflow-wrap: anywhere; }
.facts span { display: inline-block; max-width: 100%; }
.figures { display: flex; flex-wrap: wrap; gap: 16px; margin: 0 0 16px; padding: 0; list-style: none; }
.figures li {
  flex: 1 1 150px; max-width: 240px; background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 14px 18px; color: var(--soft); font-size: 13.5px;
}
.figures b {
  display: block; color: var(--ink); font-size: 24px; line-height: 1.3; font-weight: 650;
  font-variant-numeric: tabular-nums;
}
.lines { margin: 0; padding-left: 20px; }
.lines li { margin: 2px 0; overflow-wrap: anywhere; }
pre {
  margin: 0; padding: 14px 16px; border-radius: 8px; background: var(--paper); white-space: pre-wrap;
  overflow-wrap: anywhere; line-height: 1.45;
}
pre + p { margin-top: 12px; }
.legend {
  display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 8px; padding: 0; list-style: none; font-size: 13.5px;
  color: var(--soft);
}
.legend i { display: inline-block; width: 12px; height: 12px; margin-right: 6px; border-radius: 3px; }
.legend .compute { background: var(--compute); }
.legend .exposed { background: var(--exposed); }
.legend .waiting { background: var(--waiting); }
.legend .slowest, .legend .ideal, .legend .efficiency {
  height: 0; vertical-align: 4px; border-radius: 0; border-top: 3px solid var(--slowest);
}
.legend .ideal { width: 20px; border-top: 2px dashed var(--soft); }
.legend .efficiency { width: 20px; border-color: var(--compute); }
svg { display: block; width: 100%; height: auto; margin: 0 0 12px;
  font-size: 12px; font-variant-numeric: tabular-nums; }
svg text { fill: var(--soft); }
svg .middle { text-anchor: middle; }
svg .end { text-anchor: end; }
svg .name, svg .value { fill: var(--ink); font-size: 13px; }
svg .value { paint-order: stroke; stroke: var(--card); stroke-width: 4px; }
svg .grid { stroke: var(--grid); }
svg .axis { stroke: var(--soft); }
svg polyline { fill: none; stroke-linejoin: round; }
svg .loss { stroke: var(--compute); stroke-width: 2; }
svg .faint { stroke-width: 1; opacity: 0.35; }
svg .loss-dot, svg .efficiency-dot { fill: var(--compute); }
svg .gap { fill: var(--gap); }
svg .gap-name { fill: var(--ink); font-weight: 600; }
svg .compute, svg .volume { fill: var(--compute); }
svg .exposed { fill: var(--exposed); }
svg .waiting { fill: var(--waiting); }
svg .slowest { stroke: var(--slowest); stroke-width: 2; }
svg .track { fill: var(--grid); }
svg .efficiency { stroke: var(--compute); stroke-width: 2.5; }
svg .ideal { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 6 5; }
svg rect { shape-rendering: crispEdges; }
svg rect:hover, svg circle:hover { opacity: 0.8; }
.narrow { display: none; }
@media (max-width: 640px) {
  main { padding: 20px 12px 48px; }
  section, .card { padding: 14px; }
  .facts { grid-template-columns: repeat(auto-fill, minmax(130px, 1fr)); }
  .figures { gap: 10px; }
  .figures li { flex-basis: 130px; padding: 10px 14px; }
  .figures b { font-size: 20px; }
  .wide { display: none; }
  .narrow { display: block; }
}
details { margin: 0 0 6px; font-size: 14px; }
summary { color: var(--soft); cursor: pointer; }
.scroll { max-height: 380px; margin-top: 8px; overflow: auto; border: 1px solid var(--line); border-radius: 8px; }
section > .scroll { margin-bottom: 12px; font-size: 14px; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 12px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--grid); }
th:first-child { text-align: left; }
.sentences th, .sentences td { text-align: left; vertical-align: top; white-space: normal; min-width: 128px; }
tbody th { font-weight: 400; }
thead th { position: sticky; top: 0; background: var(--card); color: var(--soft); font-weight: 600; }
footer { color: var(--soft); font-size: 13px; }
:focus-visible { outline: 2px solid var(--compute); outline-offset: 2px; }
@media print { body { background: none; } section, .card, .figures li { break-inside: avoid; } }
)css";

}  // namespace accel::sim::report
