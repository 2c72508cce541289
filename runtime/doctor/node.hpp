#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "doctor/diagnose.hpp"

namespace spc {

// --- node ---

/// Kernel features, tested in separate processes.
std::vector<Finding> examine_kernel();
/// The user's own image store at `path`, opened as `store`.
Finding examine_own_store(const std::string& path, int store);
/// Programs, service user, stores, plugin: what jobs need on this machine.
std::vector<Finding> examine_node();
Finding examine_node_store();
/// Checks `[shared] directory`. It only saves pulls, so a problem is never more than a warning.
Finding examine_shared_store();
/// Checks the registry HOST[:PORT] over HTTP, with the settings of `import`.
Finding examine_registry(const std::string& config_path, const std::string& registry);
Finding examine_config(const std::string& path);
/// For HealthCheckProgram: checks whether jobs can start containers on this node. Uses no network.
/// Returns within about ten seconds even if a check hangs.
std::vector<Finding> examine_health();
/// The store's free space and its layers, for examine_health(). Users can fill the disk, so a full
/// one never drains the node.
Finding examine_space();
Finding examine_layers();
/// Returns whether slurmd has created nothing here, because none runs.
bool is_login_host();
inline constexpr char kLoginHost[] = "none: no slurmd runs here, and a login host needs none";
/// Returns the path and the free space of its file system, as text.
std::string free_space(const std::string& path);
Finding::Verdict worst_of(const std::vector<Finding>& findings);

// --- checks of many nodes ---

/// Returns at most `most` nodes of a list in Slurm's form "node[01-03,7],login". Returns those
/// before the first part of another form.
std::vector<std::string> nodes_of_list(std::string_view list, std::size_t most);
/// Returns the nodes in that form, sorted and each once.
std::string list_of_nodes(const std::vector<std::string>& nodes);

/// A check's result on one node.
struct NodeFinding {
  std::string node;
  Finding finding;
};

/// An answer to a check that several nodes have given. Sizes are those of the first node.
struct MergedAnswer {
  std::vector<std::string> nodes;
  Finding finding;
};

/// The answers to one check, the worst ones first, then those of most nodes.
struct MergedCheck {
  std::string check;
  Finding::Verdict worst = Finding::Verdict::ok;
  std::vector<MergedAnswer> answers;
};

/// Groups the findings of many nodes by check and answer. The worst checks come first, then those
/// to which nodes answer differently. Sizes and percentages in a detail make no difference, and
/// more than three answers without a failure are joined by verdict.
std::vector<MergedCheck> merge_findings(const std::vector<NodeFinding>& findings);

/// Returns ok, warning or failed.
const char* name_of(Finding::Verdict verdict);
/// Returns a finding as a JSON object on one line. srun mixes the output of tasks by lines.
std::string line_of(const std::string& node, const Finding& finding);
/// Parses such a line, with a label of srun, pdsh or clush before it and a comma behind it. Empty:
/// a line without an object. Error: the object is not a finding.
Result<std::optional<NodeFinding>> read_node_line(std::string_view line);

// --- image sources ---

/// For --job: reports the order in which this node looks up an image's blobs, and which sources are
/// unusable.
Finding examine_image_way();
/// For --job: reports whether the nodes of a step fetch images from each other, and if not, why.
Finding examine_peers();

// --- metric rows ---

/// One metric: used by the output and the test of the manual page.
struct MetricRow {
  const char* name;  ///< samples of a histogram add _bucket, _sum and _count
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
    {"spank_container_start_duration_seconds", "histogram",
     "Time of a start from begin to end; label image: registry (pulled for this start), store, "
     "fuse (in the store or in place, with layers served by FUSE), archive, squashfs, sif, file or "
     "directory."},
    {"spank_container_phase_duration_seconds", "histogram",
     "Time of a start by phase; label phase: import, sources, layers, overlay, pivot or root."},
    {"spank_container_pull_duration_seconds", "histogram", "Time of a node's pull."},
    {"spank_container_pull_size_bytes", "histogram",
     "Bytes of the compressed layers that a pull fetched from all sources."},
    {"spank_container_pull_bytes_total", "counter",
     "Bytes of all pulls; label source: registry, mirror, node or shared."},
};

/// Returns one sample of a metric as a line. `labels`: without braces, may be empty.
std::string sample(std::string_view name, std::string_view labels, std::string_view value);
std::string sample(std::string_view name, std::uint64_t value);

/// Returns the samples in Prometheus's text format, in the order of the rows, each after its HELP
/// and TYPE. Rows without samples are left out.
std::string metrics_text(const std::string& samples);

// --- log records ---

/// Keys of the `KEY_ms=` fields in a start record, in its order.
inline constexpr std::array kStartPhases = {"import", "sources", "layers", "overlay",
                                            "pivot",  "root",    "start"};

/// Keys of the numbers in a pull record, in its order. Its milliseconds follow them.
inline constexpr std::array kPullNumbers = {"nodes",      "index",          "layers",
                                            "converted",  "registry_bytes", "mirror_bytes",
                                            "node_bytes", "shared_bytes"};

/// A record in slurmd's log: a start (launch/inside/start_record.hpp), a failed start, or a node's
/// pull. The strings are parts of the line.
struct LogRecord {
  enum class Event { start, failed, pull } event = Event::start;
  std::string_view time;  ///< as slurmd wrote it
  std::string_view job, step, node;
  std::string_view image;  ///< as quoted in the log, without the quotes
  std::string_view kind;   ///< of a failure
  std::array<std::uint64_t, kPullNumbers.size()>
      pull{};  ///< for a pull, with digest and tenths[0]; the remaining members are for a start
  std::uint64_t uid = 0;
  std::string_view user, digest, from;
  std::uint64_t layers = 0, shared = 0, by_fuse = 0;
  bool pulled = false;
  std::array<std::uint64_t, kStartPhases.size()> tenths{};  ///< of milliseconds
};

/// Parses a line without its line end. Returns an empty optional unless the whole line is a record:
/// strings from users stay quoted.
std::optional<LogRecord> read_log_record(std::string_view line);

/// Opens slurmd's log for reading. Only a regular file is accepted.
Result<UniqueFd> open_log(const std::string& path);

/// Calls the function with each terminated line of at most 4 KiB from offset `begin` on. Reads at
/// most a GiB. Returns the offset behind the last terminated line, which is `begin` of the next
/// call. A file that cannot be read further ends there.
std::uint64_t for_each_log_line(int log, std::uint64_t begin,
                                const std::function<void(std::string_view)>& use);
/// Does so from the begin of a file.
Result<void> for_each_log_line(const std::string& path,
                               const std::function<void(std::string_view)>& use);

// --- log counts ---

/// Values of `kind=` in a failure record.
inline constexpr std::array kFailureKinds = {"invalid",  "not_found", "refused", "unavailable",
                                             "no_space", "corrupt",   "system",  "internal"};

/// Values of the label `image`.
inline constexpr std::array kImageKinds = {"registry", "store", "fuse", "archive",
                                           "squashfs", "sif",   "file", "directory"};

/// Values of the label `source`, in the order of the bytes in a pull record.
inline constexpr std::array kPullSources = {"registry", "mirror", "node", "shared"};

/// Returns the kind of a start's image as an index of kImageKinds. Record and name of the image
/// decide: `docker-archive:x.tar` in the store is an archive.
std::size_t kind_of_image(const LogRecord& start);

/// The number of buckets of each histogram, with the last one, which has no limit.
inline constexpr std::size_t kBuckets = 18;

/// Counts and sum of values, for a histogram of Prometheus.
struct Histogram {
  std::array<std::uint64_t, kBuckets> counts{};  ///< by bucket, not cumulative
  std::uint64_t sum = 0;                         ///< tenths of milliseconds, or bytes
};

/// Totals of the records in slurmd's log. Their size does not depend on the log.
class LogCounts {
 public:
  void add(const LogRecord& record);
  /// Returns the samples of these metrics, one per line.
  [[nodiscard]] std::string samples() const;
  /// Returns all numbers in a fixed order, as a state file stores them.
  [[nodiscard]] std::vector<std::uint64_t*> numbers();

 private:
  std::uint64_t starts_ = 0, by_fuse_ = 0, pulls_ = 0;
  std::array<std::uint64_t, kStartPhases.size()> tenths_{};  ///< of milliseconds
  std::array<std::uint64_t, kFailureKinds.size()> failures_{};
  std::array<Histogram, kImageKinds.size()> by_image_{};
  std::array<Histogram, kStartPhases.size() - 1> by_phase_{};  ///< without `start`
  Histogram pull_times_, pull_sizes_;
  std::array<std::uint64_t, kPullSources.size()> pull_bytes_{};
};

/// Counts of a log that is rotated, and the position up to which it has been read.
struct CountedLog {
  LogCounts counts;
  std::uint64_t inode = 0, bytes = 0;

  static constexpr std::size_t kMostText = 32 << 10;  ///< bytes of text()
  /// Reads text(). Error: another version wrote it, or it is damaged.
  static Result<CountedLog> parse(std::string_view text);
  /// Returns the state as JSON.
  [[nodiscard]] std::string text();
  /// Adds what follows the position. `rotated`: the log's predecessor, -1 if there is none; its end
  /// counts if the position is in it. A log that has become shorter is read from its begin.
  void read(int log, int rotated);
};

/// Counts the records of the file. With `previous`, the state of the last call, counts only what
/// follows, also behind a rotation to PATH.1. Called by root, a process of the service user reads
/// the log's lines. Returns the new state.
Result<CountedLog> count_log(const std::string& path, const CountedLog& previous = {});

// --- store state ---

/// Content of a store and usage of its file system. Files of users are not read.
struct StoreState {
  std::uint64_t size = 0, used = 0, free = 0;  ///< of the file system, bytes
  std::uint64_t inodes = 0, free_inodes = 0;   ///< 0 inodes: no limit
  std::optional<std::uint64_t> images;         ///< empty: the caller may not read them
  std::optional<std::uint64_t> layers;
  std::optional<std::uint64_t> containers;  ///< named containers of all users
  std::uint64_t layer_bytes = 0;            ///< size of the layer files
  std::uint64_t spool_bytes =
      0;  ///< blobs that relays spool for other nodes, in nameless files; only root can see them
};

Result<StoreState> state_of_store(const std::string& path);

/// Returns how many layers are squashfs, not erofs, and cannot be copied for a user. Empty if the
/// caller may not read them.
std::optional<std::uint64_t> squashfs_layers(const std::string& path);

}  // namespace spc
