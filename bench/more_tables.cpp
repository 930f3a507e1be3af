// The tables that not every run has.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cases.h"
#include "report.h"

namespace fwdmeta_bench {

void PrintViews(const Results& results) {
  bool begun = false;
  for (const Case& c : AllCases()) {
    const auto time = [&](const char* variant, const char* measure) { return results.Time(variant, measure, c.name); };
    const double totals[] = {time("view_list", "with_build"), time("view_search", "with_build"),
                             time("view_warp_search", "with_build")};
    if (std::isnan(totals[0]) && std::isnan(time("view_list", "graph"))) continue;
    if (!begun) {
      std::printf(
          "\nHow a consumer finds its tile, medians in us. Alone: a kernel on a grid of the capacity that does "
          "nothing\n"
          "else (none: not even that). Build: with the lists, without. Both: build and consumer in one captured "
          "step.\n");
      std::printf("%-16s %7s|%6s %6s %6s %6s|%6s %6s|%6s %6s %6s|%s\n", "case", "grid", "none", "list", "search",
                  "warp", "lists", "none", "list", "search", "warp", "least");
      begun = true;
    }
    const char* const names[] = {"list", "search", "warp search"};
    const auto least = std::min_element(std::begin(totals), std::end(totals)) - std::begin(totals);
    const bool complete = std::none_of(std::begin(totals), std::end(totals), [](double t) { return std::isnan(t); });
    const auto cell = [](double value) { return Cell(value, "%.2f"); };
    std::printf("%-16s %7s|%6s %6s %6s %6s|%6s %6s|%6s %6s %6s|%s\n", c.name.c_str(),
                Cell(results.Counter("view_list", "graph", c.name, "grid"), "%.0f").c_str(),
                cell(time("view_none", "graph")).c_str(), cell(time("view_list", "graph")).c_str(),
                cell(time("view_search", "graph")).c_str(), cell(time("view_warp_search", "graph")).c_str(),
                cell(time("fwdmeta", "graph")).c_str(), cell(time("no_lists", "graph")).c_str(),
                cell(totals[0]).c_str(), cell(totals[1]).c_str(), cell(totals[2]).c_str(),
                complete ? names[least] : "-");
  }
}

void PrintPlanners(const Results& results) {
  bool begun = false;
  for (const Case& c : AllCases()) {
    const auto time = [&](const char* variant, const char* measure) { return results.Time(variant, measure, c.name); };
    const double planner = time("flashinfer", "sync"), library = time("fwdmeta", "sync");
    if (std::isnan(planner)) continue;
    if (!begun) {
      std::printf(
          "\nFlashInfer's planners, medians in us. Sync: from the call until the plan is on the device, or the counts\n"
          "are readable. Enqueue: until the call returns, with host lengths.\n");
      std::printf("%-16s|%10s %10s %6s|%10s %10s\n", "case", "sync", "fwdmeta", "x", "enqueue", "fwdmeta");
      begun = true;
    }
    std::printf("%-16s|%10s %10s %6s|%10s %10s\n", c.name.c_str(), Cell(planner, "%.2f").c_str(),
                Cell(library, "%.2f").c_str(), Cell(planner / library, "%.1f").c_str(),
                Cell(time("flashinfer", "enqueue_host"), "%.2f").c_str(),
                Cell(time("fwdmeta", "enqueue_host"), "%.2f").c_str());
  }
}

}  // namespace fwdmeta_bench
