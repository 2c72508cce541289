#include "image/config/site_config.hpp"

#include <algorithm>
#include <array>

#include "image/config/config_table.hpp"
#include "image/config/features.hpp"

namespace spc {
namespace {

constexpr std::int64_t kDay = 24 * 3600;

constexpr std::array<std::string_view, 3> kEntrypoint{"no", "node", "task"};
constexpr std::array<std::string_view, 2> kBatch{"script", "steps"};
constexpr std::array<std::string_view, 2> kScope{"global", "job"};
constexpr std::array<std::string_view, 2> kMessages{"own", "pyxis"};

constexpr std::array<std::string_view, 2> kGpu{"auto", "off"};
constexpr std::array<std::string_view, 2> kGpuDevices{"allocated", "accessible"};
constexpr std::array<std::string_view, 2> kMpi{"image", "host"};
constexpr std::array<std::string_view, 3> kMpiAbi{"major", "full", "strict"};
constexpr std::array<std::string_view, 3> kFabric{"auto", "off", "require"};

bool is_line(const std::string& text) {
  return !text.empty() && std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

bool is_absolute(const std::string& text) { return is_line(text) && text.starts_with('/'); }

/// The form alone: the flags are known to launch/mount_spec, where mounts are made. One mount a text, and no relative source,
/// which would lie below each job's own directory.
bool is_mount(const std::string& text) {
  return is_line(text) && (text.starts_with('/') || text.starts_with("tmpfs:/") || text.starts_with("umount:/"));
}

bool is_name(std::string_view text, std::string_view also) {
  const auto fits = [&](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
           also.find(c) != std::string_view::npos;
  };
  return !text.empty() && (text[0] < '0' || text[0] > '9') && std::all_of(text.begin(), text.end(), fits);
}

bool is_assignment(const std::string& text) {
  const auto equals = text.find('=');
  return equals != std::string::npos && is_name(std::string_view(text).substr(0, equals), "");
}

bool is_name_or_pattern(const std::string& text) { return is_name(text, "*?"); }

bool is_hook(const std::string& text) { return is_line(text) && text.find('/') == std::string::npos; }

/// Empty means none.
bool is_limit(const std::string& text) { return text.empty() || is_upper_size(text); }
bool is_program(const std::string& text) { return text.empty() || is_absolute(text); }

class Records {
 public:
  void add(std::string_view key, std::string_view value) {
    bytes_ += key;
    bytes_ += '=';
    bytes_ += value;
    bytes_ += '\0';
  }
  void add(std::string_view key, bool value) { add(key, std::string_view(value ? "true" : "false")); }
  void add(std::string_view key, const std::vector<std::string>& list) {
    for (const std::string& element : list) add(key, std::string_view(element));
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

}  // namespace

bool is_upper_size(const std::string& text) {
  const std::size_t digits = text.find_first_not_of("0123456789");
  if (text.empty() || digits == 0 || std::min(digits, text.size()) > 12) return false;
  const std::string_view unit = digits == std::string::npos ? "" : std::string_view(text).substr(digits);
  const unsigned long long number = std::stoull(text);
  if (unit == "%") return number >= 1 && number <= 100;
  return number > 0 &&
         (unit.empty() || (unit.size() == 1 && std::string_view("KMGTkmgt").find(unit[0]) != std::string_view::npos));
}

Result<void> read_site(const TableReader& reader, SiteConfig& site) {
  SPC_TRY(reader.read("remap_root", site.remap_root));
  SPC_TRY(reader.read_word("entrypoint", site.entrypoint, kEntrypoint));
  SPC_TRY(reader.read("entrypoint_timeout", site.entrypoint_timeout, kDay));
  SPC_TRY(reader.read("slurm", site.slurm));
  SPC_TRY(reader.read_word("batch", site.batch, kBatch));
  SPC_TRY(reader.read_word("container_scope", site.container_scope, kScope));
  SPC_TRY(reader.read_word("messages", site.messages, kMessages));
  SPC_TRY(reader.read("error_report", site.error_report));
  SPC_TRY(reader.read("task_prolog_on_host", site.task_prolog_on_host));
  SPC_TRY(reader.read("mounts", site.mounts, is_mount, "expected SRC[:DST[:FLAGS]] with an absolute path of the node"));
  SPC_TRY(reader.read("env", site.env, is_assignment, "expected NAME=VALUE"));
  SPC_TRY(reader.read("keep_env", site.keep_env, is_name_or_pattern, "expected NAME, or a pattern with * and ?"));
  SPC_TRY(reader.read("allowed_paths", site.allowed_paths, is_absolute, "expected an absolute path"));
  SPC_TRY(reader.read_words("features_off", site.features_off, kFeatures));
  SPC_TRY(reader.read("max_tmpfs_size", site.max_tmpfs_size, is_limit, kUpperSizeRule));
  SPC_TRY(reader.read("importer", site.importer, is_program, "expected the absolute path of a program"));
  SPC_TRY(reader.read_word("gpu", site.gpu, kGpu));
  SPC_TRY(reader.read_word("gpu_devices", site.gpu_devices, kGpuDevices));
  SPC_TRY(reader.read("driver_root", site.driver_root, is_program, "expected the absolute path of a directory"));
  SPC_TRY(reader.read("prefer_cdi", site.prefer_cdi));
  SPC_TRY(reader.read_word("mpi", site.mpi, kMpi));
  SPC_TRY(reader.read_word("mpi_abi", site.mpi_abi, kMpiAbi));
  SPC_TRY(reader.read("mpi_libraries", site.mpi_libraries, is_absolute, "expected the absolute path of a library"));
  SPC_TRY(reader.read("mpi_dependencies", site.mpi_dependencies, is_absolute, "expected the absolute path of a library"));
  SPC_TRY(reader.read("mpi_mounts", site.mpi_mounts, is_mount, "expected SRC[:DST[:FLAGS]] with an absolute path of the node"));
  SPC_TRY(reader.read_word("fabric", site.fabric, kFabric));
  SPC_TRY(reader.read("fabric_libraries", site.fabric_libraries, is_absolute, "expected the absolute path of a library"));
  SPC_TRY(reader.read("frameworks", site.frameworks));
  SPC_TRY(reader.read("python_user_base", site.python_user_base));
  SPC_TRY(reader.read("hooks_off", site.hooks_off, is_hook, "expected the name of a hook, such as 50-nccl"));
  SPC_TRY(reader.read("hook_timeout", site.hook_timeout, kDay));
  SPC_TRY(reader.read("user_hooks", site.user_hooks));
  SPC_TRY(reader.read("enroot_compat", site.enroot_compat));
  return reader.read("check_at_submit", site.check_at_submit);
}

std::string site_records(const SiteConfig& site) {
  Records records;
  records.add("remap_root", site.remap_root);
  records.add("entrypoint", std::string_view(site.entrypoint));
  records.add("entrypoint_timeout", std::string_view(std::to_string(site.entrypoint_timeout)));
  records.add("slurm", site.slurm);
  records.add("batch", std::string_view(site.batch));
  records.add("container_scope", std::string_view(site.container_scope));
  records.add("messages", std::string_view(site.messages));
  records.add("error_report", site.error_report);
  records.add("task_prolog_on_host", site.task_prolog_on_host);
  records.add("mounts", site.mounts);
  records.add("env", site.env);
  records.add("keep_env", site.keep_env);
  records.add("allowed_paths", site.allowed_paths);
  records.add("features_off", site.features_off);
  if (!site.max_tmpfs_size.empty()) records.add("max_tmpfs_size", std::string_view(site.max_tmpfs_size));
  if (!site.importer.empty()) records.add("importer", std::string_view(site.importer));
  records.add("gpu", std::string_view(site.gpu));
  records.add("gpu_devices", std::string_view(site.gpu_devices));
  if (!site.driver_root.empty()) records.add("driver_root", std::string_view(site.driver_root));
  records.add("prefer_cdi", site.prefer_cdi);
  records.add("mpi", std::string_view(site.mpi));
  records.add("mpi_abi", std::string_view(site.mpi_abi));
  records.add("mpi_libraries", site.mpi_libraries);
  records.add("mpi_dependencies", site.mpi_dependencies);
  records.add("mpi_mounts", site.mpi_mounts);
  records.add("fabric", std::string_view(site.fabric));
  records.add("fabric_libraries", site.fabric_libraries);
  records.add("frameworks", site.frameworks);
  records.add("python_user_base", site.python_user_base);
  records.add("hooks_off", site.hooks_off);
  records.add("hook_timeout", std::string_view(std::to_string(site.hook_timeout)));
  records.add("user_hooks", site.user_hooks);
  records.add("enroot_compat", site.enroot_compat);
  records.add("check_at_submit", site.check_at_submit);
  return records.take();
}

}  // namespace spc
