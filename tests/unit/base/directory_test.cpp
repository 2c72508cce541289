#include "base/unique_fd.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <set>

#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

/// A directory with these files and a subdirectory, removed by the destructor.
class Scene {
 public:
  explicit Scene(int files) {
    char name[] = "/tmp/spc-directory-XXXXXX";
    path = ::mkdtemp(name);
    ::mkdir((path + "/below").c_str(), 0700);
    for (int i = 0; i < files; ++i)
      UniqueFd(
          ::open((path + "/" + std::to_string(i)).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  }
  ~Scene() {
    for (DirectoryReader entries(path); entries.next();)
      ::unlinkat(entries.descriptor(), entries.c_name(), 0);
    ::rmdir((path + "/below").c_str());
    ::rmdir(path.c_str());
  }
  std::string path;
};

}  // namespace

TEST_CASE("directory_reader_skips_dot_entries") {
  const Scene scene(2000);
  std::set<std::string> names;
  DirectoryReader entries(scene.path);
  while (entries.next()) {
    CHECK((entries.type() == DT_DIR) == (entries.name() == "below"));
    CHECK(names.emplace(entries.name()).second);
  }
  CHECK(entries.error() == 0);
  CHECK(names.size() == 2001);
  CHECK_FALSE(names.contains("."));
  CHECK_FALSE(entries.next());
}

TEST_CASE("directory_reader_unreadable_has_no_entries_but_error") {
  const Scene scene(1);
  DirectoryReader missing(scene.path + "/missing");
  CHECK_FALSE(missing.next());
  CHECK(missing.error() == ENOENT);
  CHECK(missing.descriptor() == -1);
  DirectoryReader file(UniqueFd(::open((scene.path + "/0").c_str(), O_RDONLY | O_CLOEXEC)));
  CHECK_FALSE(file.next());
  CHECK(file.error() == ENOTDIR);
}

TEST_CASE("directory_entries_can_be_removed_while_read") {
  const Scene scene(3000);
  int left = 0;
  for (int round = 0; round < 2; ++round) {
    left = 0;
    for (DirectoryReader entries(scene.path); entries.next();)
      left += ::unlinkat(entries.descriptor(), entries.c_name(), 0) == 0;
  }
  CHECK(left == 0);
}
