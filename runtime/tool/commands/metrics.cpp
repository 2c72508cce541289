// The commands metrics, audit and info.

#include <fcntl.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/json.hpp"
#include "base/process/own_program.hpp"
#include "base/process/supervised.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "config/config.hpp"
#include "doctor/node.hpp"
#include "tool/command.hpp"
#include "tool/surroundings/places.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {

// --- metrics ---

namespace {

/// Returns a percentage as the ratio that Prometheus expects.
std::string ratio(std::uint32_t percent) {
  char text[16];
  std::snprintf(text, sizeof text, "%u.%02u", percent / 100, percent % 100);
  return text;
}

std::string store_samples() {
  std::string text;
  if (const auto state = state_of_store(SPC_STORE_DIR)) {
    if (state->images) text += sample("spank_container_images", *state->images);
    if (state->layers) {
      text += sample("spank_container_layers", *state->layers) +
              sample("spank_container_layer_bytes", state->layer_bytes);
    }
    text += sample("spank_container_spool_bytes", state->spool_bytes);
    if (state->containers) text += sample("spank_container_named_containers", *state->containers);
    text += sample("spank_container_store_size_bytes", state->size) +
            sample("spank_container_store_free_bytes", state->free);
    if (state->inodes > 0) text += sample("spank_container_store_free_inodes", state->free_inodes);
  }
  if (const auto config = read_config(SPC_CONFIG_FILE)) {
    text +=
        sample("spank_container_store_limit_bytes", config->store.max_size) +
        sample("spank_container_high_watermark_ratio", "", ratio(config->store.high_watermark)) +
        sample("spank_container_low_watermark_ratio", "", ratio(config->store.low_watermark));
  }
  return text;
}

/// Returns the state of the last call. It is empty if there is none, or if it is of another version
/// or damaged, which is reported: the counters then restart, as Prometheus expects.
Result<CountedLog> read_state(const std::string& path) {
  const auto file = open_trusted_file(path, "state", ::geteuid());
  if (!file && file.error().kind() == ErrorKind::not_found) return CountedLog();
  if (!file) return file.error();
  const auto text = read_file(file->get(), CountedLog::kMostText);
  auto state = text ? CountedLog::parse(*text) : Result<CountedLog>(text.error());
  if (state) return state;
  report_error(formatted("warning: state {}: {}: counters restart", in_quotes(path),
                         state.error().message()));
  return CountedLog();
}

/// Replaces the file, as a whole or not at all.
Result<void> write_state(const std::string& path, const std::string& text) {
  const std::string step = "write state " + in_quotes(path), made = path + ".new";
  const UniqueFd file(
      ::open(made.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return Error::from_errno(errno, step);
  SPC_TRY_DURING(step, write_all(file.get(), text));
  if (::rename(made.c_str(), path.c_str()) != 0) return Error::from_errno(errno, step);
  return {};
}

}  // namespace

Result<int> run_metrics(const Arguments& arguments) {
  if (::geteuid() != 0)
    return Error(ErrorKind::refused, "read the node's store: only root may").hint("run it as root");
  if (arguments.has("state") && !arguments.has("log")) {
    return Error(ErrorKind::invalid, "metrics --state belongs to --log")
        .hint("scontainer metrics --help");
  }
  std::string samples =
      sample("spank_container_info", "version=\"" SPC_VERSION "\"", "1") +
      sample("spank_container_node_status", static_cast<std::uint64_t>(worst_of(examine_health())));
  samples +=
      answer_before(std::chrono::steady_clock::now() + std::chrono::seconds(5), store_samples)
          .value_or("");
  if (arguments.has("log")) {
    const std::string state = arguments.value("state");
    CountedLog counted;
    if (!state.empty()) counted = SPC_TRY(read_state(state));
    counted = SPC_TRY(count_log(arguments.value("log"), counted));
    if (!state.empty()) SPC_TRY(write_state(state, counted.text()));
    samples += counted.counts.samples();
  }
  std::fputs(metrics_text(samples).c_str(), stdout);
  return 0;
}

// --- audit ---

namespace {

/// Replaces bytes that are not UTF-8 by U+FFFD. Escapes of the log stay escaped.
Json as_json(const LogRecord& record) {
  constexpr const char* kEvents[] = {"start", "failed", "pull"};
  Json object{{"time", record.time}, {"event", kEvents[static_cast<std::size_t>(record.event)]},
              {"job", record.job},   {"step", record.step},
              {"node", record.node}, {"image", record.image}};
  if (record.event == LogRecord::Event::failed) {
    object["kind"] = record.kind;
    return object;
  }
  if (record.event == LogRecord::Event::pull) {
    object["digest"] = record.digest;
    for (std::size_t i = 0; i < kPullNumbers.size(); ++i) object[kPullNumbers[i]] = record.pull[i];
    object["pull_ms"] = static_cast<double>(record.tenths[0]) / 10;
    return object;
  }
  object["uid"] = record.uid;
  object["user"] = record.user;
  object["digest"] = record.digest == "-" ? Json() : Json(record.digest);
  object["from"] = record.from;
  object["layers"] = record.layers;
  object["shared"] = record.shared;
  object["fuse"] = record.by_fuse;
  object["pulled"] = record.pulled;
  for (std::size_t i = 0; i < record.tenths.size(); ++i) {
    object[formatted("{}_ms", kStartPhases[i])] = static_cast<double>(record.tenths[i]) / 10;
  }
  return object;
}

}  // namespace

Result<int> run_audit(const Arguments& arguments) {
  for (const std::string& path : arguments.words) {
    SPC_TRY(for_each_log_line(path, [](std::string_view line) {
      if (const auto record = read_log_record(line))
        std::puts(as_json(*record).str(0, ' ', Json::Order::kept).c_str());
    }));
  }
  return 0;
}

// --- info ---

Result<int> run_info(const Arguments& arguments) {
  const auto places = SPC_TRY(Places::find());
  const auto config = SPC_TRY(read_config(places.config, ::geteuid(), places.containers));
  utsname system{};
  ::uname(&system);
  const std::string import = own_program("import");
  const std::pair<const char*, std::string> lines[] = {
      {"version", SPC_VERSION},
      {"store", places.store},
      {"store_of_the_node", SPC_STORE_DIR},
      {"config", ::access(places.config.c_str(), F_OK) == 0
                     ? places.config
                     : places.config + " (missing: defaults)"},
      {"default_registry", config.default_registry},
      {"pull", name_of(config.pull)},
      {"platform", Platform::host().str()},
      {"kernel", system.release},
      {"programs", import.substr(0, import.rfind('/'))},
  };
  if (arguments.has("json")) {
    Json object = Json::object();
    for (const auto& [key, value] : lines) object[key] = value;
    std::puts(object.str(2).c_str());
    return 0;
  }
  for (const auto& [key, value] : lines) std::printf("%-18s %s\n", key, printable(value).c_str());
  return 0;
}

}  // namespace spc::tool
