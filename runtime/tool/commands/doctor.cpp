#include "tool/doctor.hpp"

#include <cstdio>

#include "image/json.hpp"
#include "tool/command.hpp"
#include "tool/terminal.hpp"

namespace spc {
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

void print(const Finding& finding) {
  char verdict[16];
  std::snprintf(verdict, sizeof verdict, "%-8s", name_of(finding.verdict));
  std::string line = coloured(verdict, colour_of(finding.verdict)) + finding.what + ": " + printable(finding.detail);
  if (!finding.cure.empty()) line += " (cure: " + finding.cure + ")";
  std::puts(line.c_str());
}

}  // namespace

Result<int> run_doctor(const Arguments& arguments) {
  if (!arguments.words.empty()) {
    if (arguments.has("registry")) {
      return Error(ErrorKind::invalid, "doctor FILE explains a log and takes no --registry").hint("scontainer doctor --help");
    }
    const bool found = SPC_TRY(explain_log(arguments.words[0], arguments.has("json")));
    return found ? 1 : 0;
  }
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
  findings.push_back(examine_registry(config, arguments.value("registry")));

  bool failed = false;
  Json list = Json::array();
  for (const Finding& finding : findings) {
    failed = failed || finding.verdict == Finding::Verdict::failed;
    list.push_back(
        {{"check", finding.what}, {"verdict", name_of(finding.verdict)}, {"detail", finding.detail}, {"cure", finding.cure}});
    if (!arguments.has("json")) print(finding);
  }
  if (arguments.has("json")) std::puts(list.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  return failed ? 1 : 0;
}

}  // namespace spc
