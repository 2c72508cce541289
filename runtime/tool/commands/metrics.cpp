#include <unistd.h>

#include <cstdio>

#include "base/format.hpp"
#include "image/config/config.hpp"
#include "tool/command.hpp"
#include "tool/doctor/bounded.hpp"
#include "tool/doctor/doctor.hpp"
#include "tool/doctor/store_state.hpp"
#include "tool/metrics/log_counts.hpp"
#include "tool/metrics/metric_rows.hpp"

namespace spc::tool {
namespace {

/// A percentage as Prometheus wants it.
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

}  // namespace

Result<int> run_metrics(const Arguments& arguments) {
  if (::geteuid() != 0)
    return Error(ErrorKind::refused, "read the node's store: only root may").hint("run it as root");
  std::string samples =
      sample("spank_container_info", "version=\"" SPC_VERSION "\"", "1") +
      sample("spank_container_node_status", static_cast<std::uint64_t>(worst_of(examine_health())));
  samples +=
      answer_before(std::chrono::steady_clock::now() + std::chrono::seconds(5), store_samples)
          .value_or("");
  if (arguments.has("log")) {
    const LogCounts counts = SPC_TRY(count_log(arguments.value("log")));
    samples += counts.samples();
  }
  std::fputs(metrics_text(samples).c_str(), stdout);
  return 0;
}

}  // namespace spc::tool
