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
  return preflight(surroundings_of_this_process(config ? config->site.driver_root : std::string()));
}

std::vector<Finding> examine_machine(const std::string& registry) {
  std::vector<Finding> findings = examine_kernel();
  const auto add = [&](std::vector<Finding> more) {
    for (auto& finding : more) findings.push_back(std::move(finding));
  };
  const auto places = Places::find();
  const std::string config = places ? places->config : SPC_CONFIG_FILE;
  if (!places) {
    findings.push_back({"your store", Finding::Verdict::failed, places.error().message(), "set XDG_DATA_HOME"});
  } else if (places->own_store) {
    add(examine_own_store(*places));
  }
  findings.push_back(examine_config(config));
  add(examine_node());
  findings.push_back(examine_registry(config, registry));
  return findings;
}

/// Whether none failed.
bool report(const std::vector<Finding>& findings, bool as_json) {
  bool failed = false;
  Json list = Json::array();
  for (const Finding& finding : findings) {
    failed = failed || finding.verdict == Finding::Verdict::failed;
    list.push_back(
        {{"check", finding.what}, {"verdict", name_of(finding.verdict)}, {"detail", finding.detail}, {"cure", finding.cure}});
    if (!as_json) print_finding(finding);
  }
  if (as_json) std::puts(list.str(2).c_str());
  return !failed;
}

}  // namespace

Result<int> run_doctor(const Arguments& arguments) {
  const int asked = static_cast<int>(!arguments.words.empty()) + static_cast<int>(arguments.has("job")) +
                    static_cast<int>(arguments.has("registry"));
  if (asked > 1) {
    return Error(ErrorKind::invalid, "doctor takes only one of FILE, --job and --registry").hint("scontainer doctor --help");
  }
  const bool as_json = arguments.has("json");
  if (!arguments.words.empty()) {
    const bool recognised = SPC_TRY(explain_log(arguments.words[0], as_json));
    return recognised ? 1 : 0;
  }
  return report(arguments.has("job") ? examine_job() : examine_machine(arguments.value("registry")), as_json) ? 0 : 1;
}

}  // namespace spc::tool
