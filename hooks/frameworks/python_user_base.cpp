#include "hooks/frameworks/python_user_base.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cstdio>

namespace spc {
namespace {

/// Whether what is written there is there in the next step: a file system of its own, and not one
/// in memory.
bool persists(const HookContext& context, const std::string& directory) {
  if (!context.open_in_image) return false;
  const UniqueFd there = context.open_in_image(directory.c_str(), O_RDONLY | O_DIRECTORY);
  const UniqueFd root = context.open_in_image("/", O_RDONLY | O_DIRECTORY);
  struct stat of_there {
  }, of_root{};
  struct statfs kind {};
  if (!there || !root || ::fstat(there.get(), &of_there) != 0 || ::fstat(root.get(), &of_root) != 0)
    return false;
  if (of_there.st_dev == of_root.st_dev || ::fstatfs(there.get(), &kind) != 0) return false;
  return kind.f_type != TMPFS_MAGIC && kind.f_type != RAMFS_MAGIC;
}

/// A path that starts from the work directory of the job says nothing without it.
std::string full_name(const HookContext& context) {
  const std::string* workdir = context.of_job("PWD");
  return (context.image_name.starts_with('.') && workdir != nullptr ? *workdir + "/" : "") +
         context.image_name;
}

Result<Edits> base_of_task(const HookContext& context) {
  Edits edits;
  const auto home = context.environment.find("HOME");
  if (home == context.environment.end() || !home->second.starts_with('/') ||
      context.environment.contains("PYTHONUSERBASE"))
    return edits;
  if (!persists(context, home->second)) return edits;
  const std::string base = home->second + "/.local/share/spank-container/python/" +
                           python_base_name(context.image_digest, full_name(context));
  edits.environment.defaults["PYTHONUSERBASE"] = base;
  edits.environment.prepend["PATH"] = base + "/bin";
  edits.notes.push_back("pip install --user directory of this image: " + base);
  return edits;
}

bool wants_user_base(const HookContext& context) { return context.flag("python_user_base", true); }

}  // namespace

std::string python_base_name(const std::string& image_digest, const std::string& image_name) {
  constexpr std::size_t kDigits = 16;
  constexpr std::string_view kAlgorithm = "sha256:";
  if (image_digest.starts_with(kAlgorithm)) return image_digest.substr(kAlgorithm.size(), kDigits);
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : image_name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  char digits[kDigits + 1];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return "file-" + std::string(digits);
}

const Hook python_user_base_hook{.name = "50-python-user-base",
                                 .says = "a directory per image for pip install --user",
                                 .when = wants_user_base,
                                 .task = base_of_task};

}  // namespace spc
