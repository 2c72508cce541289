#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace spc::tool {

/// One metric: used by the output and the test of the manual page.
struct MetricRow {
  const char* name;
  const char* type;
  const char* help;
};

inline constexpr MetricRow kMetricRows[] = {
    {"spank_container_info", "gauge", "Always 1; label version: the installed version."},
    {"spank_container_node_status", "gauge",
     "Result of scontainer doctor --node: 0 healthy, 1 warnings only, 2 jobs cannot start "
     "containers."},
    {"spank_container_images", "gauge", "Images in the node's store."},
    {"spank_container_layers", "gauge", "Layers in the node's store."},
    {"spank_container_layer_bytes", "gauge", "Bytes of the files of all layers."},
    {"spank_container_spool_bytes", "gauge",
     "Bytes of nameless files with blobs that running steps send to other nodes."},
    {"spank_container_named_containers", "gauge",
     "Containers with a name that are kept on the node, of all users."},
    {"spank_container_store_size_bytes", "gauge", "Size of the store's file system."},
    {"spank_container_store_free_bytes", "gauge", "Free bytes of the store's file system."},
    {"spank_container_store_free_inodes", "gauge", "Free inodes of the store's file system."},
    {"spank_container_store_limit_bytes", "gauge", "The setting max_size; 0: no limit."},
    {"spank_container_high_watermark_ratio", "gauge", "The setting high_watermark, 0 to 1."},
    {"spank_container_low_watermark_ratio", "gauge", "The setting low_watermark, 0 to 1."},
    {"spank_container_starts_total", "counter", "Started containers, one for each step and node."},
    {"spank_container_fuse_starts_total", "counter",
     "Those of them with at least one layer served by FUSE."},
    {"spank_container_pulls_total", "counter",
     "Those of them that waited for their image to be pulled."},
    {"spank_container_failures_total", "counter", "Failed starts; label kind: why."},
    {"spank_container_start_seconds_total", "counter",
     "Time of all starts; label phase: import, sources, layers, overlay, pivot, root, or start: "
     "from begin to end."},
};

/// A sample of a metric, one line. `labels`: without braces, may be empty.
std::string sample(std::string_view name, std::string_view labels, std::string_view value);
std::string sample(std::string_view name, std::uint64_t value);

/// The samples in Prometheus's text format: in the order of the rows, each below its HELP and TYPE;
/// none without samples.
std::string metrics_text(const std::string& samples);

}  // namespace spc::tool
