// Leases, notes, blobs and layers in a shared store written by another process.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>

#include "base/file.hpp"
#include "base/hash.hpp"
#include "lib/memory_file.hpp"
#include "lib/parts.hpp"
#include "protocol/fuse.hpp"
#include "share/shared_store.hpp"

using namespace spc;
using namespace spc::fuzz;

namespace {

namespace fs = std::filesystem;

constexpr char kFrom[] = "registry:5000/x";

/// A directory of this process with a store and a file that must not be touched.
struct Scene {
  fs::path top, store, secret;
  Scene() {
    const char* const memory = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    std::string name = std::string(memory) + "/spc-fuzz-XXXXXX";
    must(::mkdtemp(name.data()) != nullptr, "there is room");
    top = name;
    store = top / "store";
    secret = top / "secret";
    must(::mkdir(store.c_str(), 0700) == 0, "there is room");
  }
  ~Scene() { fs::remove_all(top); }
  Scene(const Scene&) = delete;
  Scene& operator=(const Scene&) = delete;
};

void put(const fs::path& path, std::string_view text, bool is_old = false) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  must(file && write_all(file.get(), text).has_value(), "files can be written");
  constexpr std::array<timespec, 2> kLongAgo{{{1000, 0}, {1000, 0}}};
  if (is_old) must(::futimens(file.get(), kLongAgo.data()) == 0, "files have times");
}

std::string text_in(int file) {
  auto text = ::lseek(file, 0, SEEK_SET) == 0 ? read_file(file, 1 << 20)
                                              : Result<std::string>(std::string());
  return text ? *std::move(text) : std::string();
}

/// Checks a lease of another process and its effects.
void check_lease(const SharedStore& store, const Scene& scene, const Digest& blob) {
  WatchedLease others;
  const auto taken = store.lease(blob, kFrom, others);
  must(taken && !*taken, "nobody takes over what has just changed");
  const std::string note = others.note();
  must(note.size() <= 1024, "a note is short");
  if (const UniqueFd growing = store.follow(note, blob)) {
    const std::string text = text_in(growing.get());
    must(text != "secret" && text != "not of this blob",
         "only what is written for this blob is followed");
    store.adopt(note, blob, kFrom);
    must(fs::exists(scene.store / "blobs/sha256" / blob.hex()),
         "and taken for it, when who brought it has died");
  } else {
    store.adopt(note, blob, kFrom);
  }
}

void check_layer(const SharedStore& store, const Digest& blob) {
  const SharedStore::Layer layer{
      .form = "2-squashfs-zstd", .name = blob, .blob = blob, .place = kFrom};
  const UniqueFd to = memory_file();
  const auto copied = store.copy_layer(layer, to.get());
  if (!copied) return must_be_readable(copied.error());
  must(!*copied || store.has_layer(layer), "a layer that is sound stays");
}

void check_note(const SharedStore& store, const Digest& blob) {
  const auto note = store.image_note(blob, kFrom, "2-squashfs-zstd");
  const auto image = note ? ImageInPlace::parse(note->text) : Result(ImageInPlace());
  if (!image) return must_be_readable(image.error());
  for (const auto& layer : image->layers) {
    must(layer.bytes <= kMostVerified, "a layer in place has a possible size");
    if (const auto opened = store.open_layer(*image, layer); !opened)
      must_be_readable(opened.error());
  }
  const auto again = ImageInPlace::parse(image->serialize());
  must(image->layers.empty() || again.has_value(), "a note is read as it was written");
}

}  // namespace

// First byte: 1: the lease's owner died, 2: a link in place of the blob, 4: a link in place of the
// awaited blob, 8: the blob exists. Then, in parts: lease, blob, layer, name of a place, name of a
// file in tmp/, note of an image in place. BLOB stands for the blob's name.
FUZZ_TARGET(shared_files) {
  static const Scene scene;
  if (size == 0) return 0;
  const std::uint8_t how = data[0];
  const Digest blob = Sha256::of("blob");
  const std::string text = replaced(std::string(text_of(data + 1, size - 1)), "BLOB", blob.hex());
  std::string_view rest = text;
  const auto lease = next_part(rest), content = next_part(rest), layer = next_part(rest),
             name = next_part(rest), growing = next_part(rest), note = next_part(rest);

  fs::remove_all(scene.store);
  must(::mkdir(scene.store.c_str(), 0700) == 0, "there is room");
  put(scene.secret, "secret");
  const auto store = SharedStore::open(scene.store, 1 << 20);
  must(store.has_value(), "a store can be opened");
  const std::string place = Sha256::of(kFrom).hex();
  fs::create_directories(scene.store / "delivered" / place);
  fs::create_directories(scene.store / "layers/2-squashfs-zstd");
  put(scene.store / "delivered" / place / blob.hex(), "");
  put(scene.store / "delivered" / place / "name", name);
  put(scene.store / "leases" / (blob.hex() + "." + place.substr(0, 16)), lease, (how & 1) != 0);
  put(scene.store / "layers/2-squashfs-zstd" / blob.hex(), layer);
  put(scene.store / "tmp/other", "not of this blob");
  if ((how & 2) != 0) {
    fs::create_symlink(scene.secret, scene.store / "blobs/sha256" / blob.hex());
  } else if ((how & 8) != 0) {
    put(scene.store / "blobs/sha256" / blob.hex(), content);
  }
  const bool is_name = !growing.empty() && growing.size() < 200 &&
                       growing.find('/') == std::string_view::npos &&
                       growing.find('\0') == std::string_view::npos && growing != "." &&
                       growing != ".." && growing != "other";
  if (is_name && (how & 4) != 0)
    fs::create_symlink(scene.secret, scene.store / "tmp" / std::string(growing));
  if (is_name && (how & 4) == 0) put(scene.store / "tmp" / std::string(growing), "growing");

  put(scene.store / "images" / (blob.hex() + "." + place.substr(0, 16) + ".2-squashfs-zstd"), note);
  check_note(*store, blob);

  const auto document = store->document(blob, 1 << 16, kFrom);
  must(!document || Sha256::of(*document) == blob, "a document has its digest");
  const UniqueFd found = store->find(blob, content.size(), kFrom);
  must(!found || text_in(found.get()) == content, "a blob is a file in the store");
  must(!store->find(blob, content.size(), "registry:5000/other"),
       "for the place that has delivered it");
  check_layer(*store, blob);
  for (const auto& [digest, places] : store->places()) {
    for (const auto& one : places)
      must(one == name && one.size() <= 1024, "a place has the name that is written there");
  }
  if ((how & 1) != 0) check_lease(*store, scene, blob);
  (void)store->blobs();
  (void)store->clean(1, true);
  (void)store->clean(1, false);
  const UniqueFd secret(::open(scene.secret.c_str(), O_RDONLY | O_CLOEXEC));
  must(secret && text_in(secret.get()) == "secret", "nothing outside of the store is touched");
  return 0;
}
