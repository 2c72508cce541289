#include "launch/sources/image_order.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "unit/catch2_compat.hpp"

using namespace spc;
namespace fs = std::filesystem;

namespace {

/// The working directory of one test.
class Directory {
 public:
  Directory() : before_(fs::current_path()) {
    std::string name = (fs::temp_directory_path() / "spc-local-image-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    fs::current_path(at_ = name);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory() {
    fs::current_path(before_);
    fs::remove_all(at_);
  }
  [[nodiscard]] std::string path() const { return at_.string(); }

 private:
  fs::path before_;
  fs::path at_;
};

void write(const std::string& name, const std::string& text) {
  std::ofstream(name, std::ios::binary) << text;
  ::chmod(name.c_str(), 0644);
}

std::string image_refusal(const std::string& path) {
  const auto image = open_local_image(path);
  return image ? "accepted" : image.error().message();
}

/// Returns a super block with plausible numbers, without any data after it.
std::string squashfs(std::size_t size = 4096) {
  std::string bytes(size, '\0');
  const auto put = [&](std::size_t at, auto number) {
    std::memcpy(bytes.data() + at, &number, sizeof number);
  };
  put(0, std::uint32_t{0x73717368});
  put(12, std::uint32_t{131072});
  put(20, std::uint16_t{1});
  put(22, std::uint16_t{17});
  put(26, std::uint16_t{1});
  put(28, std::uint16_t{4});
  put(40, std::uint64_t{4096});
  put(48, std::uint64_t{1000});
  put(56, ~std::uint64_t{0});
  put(64, std::uint64_t{96});
  put(72, std::uint64_t{200});
  return bytes;
}

}  // namespace

TEST_CASE("local_image_kind_is_detected_by_content") {
  const Directory here;
  write("a.txt", squashfs());
  auto image = open_local_image("./a.txt");
  REQUIRE(image);
  CHECK(
      (image->kind == LocalImage::Kind::squashfs && image->offset == 0 && image->warning.empty()));
  write("b.sqsh", std::string("\x1f\x8b\x08", 3));
  CHECK(open_local_image("./b.sqsh").value().kind == LocalImage::Kind::archive);
  write("c", std::string(257, 'x') + "ustar" + std::string(300, '\0'));
  CHECK(open_local_image("./c").value().kind == LocalImage::Kind::archive);
  fs::create_directory("d");
  CHECK(open_local_image("./d").value().kind == LocalImage::Kind::directory);
  CHECK(open_local_image(here.path() + "/d/").value().kind == LocalImage::Kind::directory);
}

TEST_CASE("local_image_of_other_content_is_refused") {
  const Directory here;
  constexpr char kHint[] =
      " (hint: an image is a squashfs (.sqsh), a SIF file, an ext4 or EROFS file system, a tar "
      "archive or a directory)";
  const std::pair<const char*, std::string> files[] = {{"an empty file", ""},
                                                       {"a program",
                                                        "\x7f"
                                                        "ELF..."},
                                                       {"a script", "#!/bin/sh\n"},
                                                       {"a zip archive", "PK\3\4..."},
                                                       {"no image", "hello\n"}};
  for (const auto& [what, text] : files) {
    write("file", text);
    CHECK(image_refusal("./file") == std::string("open image \"./file\": it is ") + what + kHint);
  }
  for (const char* recipe : {"Bootstrap: docker\n", "FROM debian:12\n"}) {
    write("file", recipe);
    CHECK(image_refusal("./file") ==
          "open image \"./file\": it is a recipe of an image (hint: scontainer build -o app.sif -f "
          "./file .)");
  }
  write("file", squashfs(2000));
  CHECK(image_refusal("./file") ==
        "open image \"./file\": the squashfs is truncated: 2000 of 4096 bytes are there (hint: "
        "copy it again)");
  CHECK(image_refusal("./missing") ==
        "open image \"./missing\": no such file or directory (hint: it must exist on every node of "
        "the step)");
  fs::create_directory("layout");
  write("layout/oci-layout", "{}");
  CHECK(image_refusal("./layout/") ==
        "open image \"./layout/\": it is an OCI image layout, not a root directory (hint: use "
        "oci:./layout)");
}

// outcome 136 refused: the path is a link, FIFO, socket, device
TEST_CASE("local_image_fifo_socket_or_device_does_not_block") {
  const Directory here;
  REQUIRE(::mkfifo("fifo", 0600) == 0);
  CHECK(image_refusal("./fifo").starts_with("open image \"./fifo\": it is a FIFO"));
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = "socket"};
  REQUIRE(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  CHECK(image_refusal("./socket").starts_with("open image \"./socket\": it is a socket"));
  ::close(listener);
  CHECK(image_refusal("/dev/null").starts_with("open image \"/dev/null\": it is a device"));
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  CHECK(image_refusal("/proc/self/fd/" + std::to_string(ends[0])).find("it is a FIFO") !=
        std::string::npos);
  ::close(ends[0]);
  ::close(ends[1]);
}

// outcome 137 accepted: files of others, writable by all, of mode 0000
TEST_CASE("local_image_writable_by_others_warns") {
  const Directory here;
  write("image", squashfs());
  ::chmod("image", 0666);
  CHECK(open_local_image("./image").value().warning ==
        "image \"./image\" is writable by others, who control its content");
  ::chmod("image", 0664);
  CHECK(open_local_image("./image").value().warning ==
        "image \"./image\" is writable by others in its group, who control its content");
}

TEST_CASE("local_image_named_like_missing_image_is_suggested") {
  const Directory here;
  write("pytorch", "x");
  CHECK(did_you_mean_file("pytorch") ==
        "there is a file of this name here: did you mean \"./pytorch\"?");
  CHECK(did_you_mean_file("ubuntu").empty());
  CHECK(did_you_mean_file("docker://pytorch").empty());
}
