#include "api/used_features.hpp"

namespace spc {
namespace {

bool is_given(const char* text) { return text != nullptr && *text != '\0'; }
bool is_given(const char* const* list) { return list != nullptr && *list != nullptr; }

struct Use {
  const char* feature;
  bool (*of)(const spc_options& options);
};

constexpr Use kUses[] = {
    {"container-mounts", [](const spc_options& o) { return is_given(o.mounts); }},
    {"container-workdir", [](const spc_options& o) { return is_given(o.workdir); }},
    {"container-env", [](const spc_options& o) { return is_given(o.env); }},
    {"container-pull", [](const spc_options& o) { return is_given(o.pull); }},
    {"container-platform", [](const spc_options& o) { return is_given(o.platform); }},
    {"container-writable", [](const spc_options& o) { return o.writable == SPC_YES; }},
    {"container-readonly", [](const spc_options& o) { return o.writable == SPC_NO; }},
    {"container-mount-home", [](const spc_options& o) { return o.mount_home == SPC_YES; }},
    {"container-name", [](const spc_options& o) { return is_given(o.name); }},
    {"container-save", [](const spc_options& o) { return is_given(o.save); }},
    {"container-remap-root", [](const spc_options& o) { return o.remap_root == SPC_YES; }},
    {"container-entrypoint", [](const spc_options& o) { return o.entrypoint == SPC_YES; }},
    {"container-entrypoint-log", [](const spc_options& o) { return o.entrypoint_log == SPC_YES; }},
    {"container-unshare", [](const spc_options& o) { return is_given(o.unshare); }},
    {"container-contain", [](const spc_options& o) { return o.contain == SPC_YES; }},
    {"container-tmpfs-size", [](const spc_options& o) { return is_given(o.tmpfs_size); }},
    {"container-private", [](const spc_options& o) { return o.private_layer == SPC_YES; }},
    {"container-slurm", [](const spc_options& o) { return o.slurm == SPC_YES; }},
    {"container-gpu", [](const spc_options& o) { return o.gpu == SPC_YES; }},
    {"container-device", [](const spc_options& o) { return is_given(o.devices); }},
    {"container-mpi", [](const spc_options& o) { return is_given(o.mpi); }},
    {"container-explain", [](const spc_options& o) { return o.explain == SPC_YES; }},
    {"container-verbose", [](const spc_options& o) { return o.verbose == SPC_YES; }},
};

}  // namespace

std::vector<std::string> used_features(const spc_options& options) {
  std::vector<std::string> used;
  for (const Use& use : kUses) {
    if (use.of(options)) used.emplace_back(use.feature);
  }
  return used;
}

}  // namespace spc
