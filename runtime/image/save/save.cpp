#include "image/save/save.hpp"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/processors.hpp"
#include "base/process/user_namespace.hpp"
#include "image/export/enroot_files.hpp"
#include "image/export/image_tree.hpp"
#include "image/store/record.hpp"

namespace spc {
namespace {

constexpr std::size_t kMostOfRecord = 8 << 20;
constexpr std::size_t kMostOfEnvironment = 1 << 20;
constexpr std::uint64_t kMegabyte = 1'000'000;

/// The first task is bound to its own CPUs; all of the step's are free now. Outside of its cgroup nobody gets any.
unsigned use_all_cpus() {
  cpu_set_t set;
  std::memset(&set, 0xff, sizeof set);
  (void)::sched_setaffinity(0, sizeof set, &set);
  return usable_processors();
}

/// What enroot wants to find. The variables that were set in the container's /etc/environment stay, unless the image has them.
std::vector<AddedFile> files_for(const SavedTree& tree) {
  if (tree.in_files) return {};
  auto files = enroot_files(tree.settings, tree.config);
  for (AddedFile& file : files) {
    if (file.path != "etc/environment") continue;
    std::string before = text_in_image(tree.root.get(), file.path, kMostOfEnvironment);
    if (!before.empty() && before.back() != '\n') before += '\n';
    file.text.insert(0, before);
  }
  return files;
}

}  // namespace

Result<SavedTree> read_saved_tree(UniqueFd root, int record, int settings) {
  const auto bytes = SPC_TRY(read_file(record, kMostOfRecord));
  const auto parsed = SPC_TRY(parse_image_record(bytes));
  SavedTree tree{.root = std::move(root), .settings = parsed.settings, .config = parsed.config, .in_files = settings >= 0};
  if (tree.in_files) tree.settings = SPC_TRY(read_file(settings, kMostOfRecord));
  return tree;
}

Result<void> Save::prepare() {
  SPC_TRY(file_.make());
  // As root of a user namespace, so that files are read that not even their owner may read, such as /etc/shadow of some
  // images: all of them are the user's. Where there are no user namespaces, such a file is an error with its name.
  // The maps in /proc/self are root's as long as the process cannot be dumped, and one of a program that nobody can read cannot.
  ::prctl(PR_SET_DUMPABLE, 1);
  [[maybe_unused]] const auto entered = enter_user_namespace(RootMap::self);
  ::prctl(PR_SET_DUMPABLE, 0);
  return {};
}

Result<void> Save::run(const SavedTree& tree, unsigned cpus) {
  std::uint64_t total = 0;
  SPC_TRY(walk_image(tree.root.get(), [&](const TreeEntry& entry) -> Result<void> {
    total += 1024;
    if (S_ISREG(entry.status.st_mode)) total += static_cast<std::uint64_t>(entry.status.st_size);
    return {};
  }));
  total_ = total;
  const auto progress = [&](std::uint64_t bytes) { written_ = bytes; };
  const unsigned allowed = use_all_cpus();
  const auto write = [&]() -> Result<void> {
    const OciImage content{.config = tree.config, .settings = tree.settings, .name = "saved"};
    if (target_.oci) return write_oci_archive(tree.root.get(), content, file_.file(), progress);
    const unsigned workers = cpus == 0 ? allowed : std::min(cpus, allowed);
    return write_squashfs(tree.root.get(), files_for(tree), file_.file(), workers, {}, progress);
  };
  if (const auto written = write(); !written) return file_.about(written.error());
  struct stat status {};
  if (::fstat(file_.file(), &status) == 0) size_ = static_cast<std::uint64_t>(status.st_size);
  const std::scoped_lock lock(naming_);
  return file_.publish();
}

std::string Save::progress() const {
  const std::uint64_t written = written_;
  if (total_ == 0) return "reading its files";
  const std::uint64_t percent = std::min<std::uint64_t>(written * 100 / total_, 99);
  return formatted("{}% of {} MB", percent, total_ / kMegabyte);
}

std::string Save::summary(unsigned seconds) const {
  return formatted("{} MB became {} MB in {} s", total_ / kMegabyte, size_ / kMegabyte, seconds);
}

void Save::abandon() {
  naming_.lock();
  file_.unmake();
}

}  // namespace spc
