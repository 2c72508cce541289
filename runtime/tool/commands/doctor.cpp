#include "tool/doctor/doctor.hpp"

#include <cstdio>

#include "base/format.hpp"
#include "base/json/json.hpp"
#include "doctor/preflight.hpp"
#include "image/config/config.hpp"
#include "tool/command.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {
namespace {

const char* name_of(Finding::Verdict verdict) {
  switch (verdict) {
    case Finding::Verdict::ok: return "ok";
    case Finding::Verdict::warning: return "warning";
    case Finding::Verdict::failed: return "failed";
  }
  return "";
}

Colour colour_of(Finding::Verdict verdict) {
  switch (verdict) {
    case Finding::Verdict::ok: return Colour::green;
    case Finding::Verdict::warning: return Colour::yellow;
    case Finding::Verdict::failed: return Colour::red;
  }
  return Colour::none;
}

void print_finding(const Finding& finding) {
  char verdict[16];
  std::snprintf(verdict, sizeof verdict, "%-8s", name_of(finding.verdict));
  std::string line = formatted("{}{}: {}", coloured(verdict, colour_of(finding.verdict)),
                               finding.what, printable(finding.detail));
  if (!finding.cure.empty()) line += formatted(" (fix: {})", finding.cure);
  std::puts(line.c_str());
}

/// What a job needs on this node, as the calling process finds it.
std::vector<Finding> examine_job() {
  // In jobs the site's settings count, not the user's own.
  const auto config = read_config(SPC_CONFIG_FILE);
  auto findings =
      preflight(surroundings_of_this_process(config ? config->site.driver_root : std::string()));
  findings.push_back(examine_image_way());
  findings.push_back(examine_peers());
  return findings;
}

std::vector<Finding> examine_machine(const std::string& registry) {
  std::vector<Finding> findings = examine_kernel();
  const auto add = [&](std::vector<Finding> more) {
    for (auto& finding : more) findings.push_back(std::move(finding));
  };
  const auto places = Places::find();
  const std::string config = places ? places->config : SPC_CONFIG_FILE;
  if (!places) {
    findings.push_back(
        {"your store", Finding::Verdict::failed, places.error().message(), "set XDG_DATA_HOME"});
  } else if (places->own_store) {
    add(examine_own_store(*places));
  }
  findings.push_back(examine_config(config));
  add(examine_node());
  findings.push_back(examine_registry(config, registry));
  return findings;
}

/// Only what is wrong, as errors are told.
void report_wrong(const std::vector<Finding>& findings) {
  for (const Finding& one : findings) {
    if (one.verdict == Finding::Verdict::ok) continue;
    const char* kind = one.verdict == Finding::Verdict::warning ? "warning: " : "";
    const std::string hint = one.cure.empty() ? "" : formatted(" (hint: {})", one.cure);
    report_error(formatted("{}{}: {}{}", kind, one.what, printable(one.detail), hint));
  }
}

void report(const std::vector<Finding>& findings, bool as_json) {
  Json list = Json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"check", finding.what},
                    {"verdict", name_of(finding.verdict)},
                    {"detail", finding.detail},
                    {"cure", finding.cure}});
    if (!as_json) print_finding(finding);
  }
  if (as_json) std::puts(list.str(2).c_str());
}

int examine_for_slurm(bool quiet, bool as_json) {
  constexpr int kStatus[] = {0, 3, 1};  // ok, warning, failed: 2 is wrong usage
  const auto findings = examine_health();
  if (quiet) {
    report_wrong(findings);
  } else {
    report(findings, as_json);
  }
  return kStatus[static_cast<std::size_t>(worst_of(findings))];
}

}  // namespace

Result<int> run_doctor(const Arguments& arguments) {
  const int asked =
      static_cast<int>(!arguments.words.empty()) + static_cast<int>(arguments.has("job")) +
      static_cast<int>(arguments.has("registry")) + static_cast<int>(arguments.has("node"));
  if (asked > 1) {
    return Error(ErrorKind::invalid, "doctor takes only one of FILE, --job, --node and --registry")
        .hint("scontainer doctor --help");
  }
  const bool as_json = arguments.has("json");
  if (arguments.has("quiet") && (!arguments.has("node") || as_json)) {
    return Error(ErrorKind::invalid, "doctor --quiet belongs to --node, without --json")
        .hint("scontainer doctor --help");
  }
  if (arguments.has("node")) return examine_for_slurm(arguments.has("quiet"), as_json);
  if (!arguments.words.empty()) {
    const bool recognised = SPC_TRY(explain_log(arguments.words[0], as_json));
    return recognised ? 1 : 0;
  }
  const auto findings =
      arguments.has("job") ? examine_job() : examine_machine(arguments.value("registry"));
  report(findings, as_json);
  return worst_of(findings) == Finding::Verdict::failed ? 1 : 0;
}

}  // namespace spc::tool
