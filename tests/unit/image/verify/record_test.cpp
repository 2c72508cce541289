// Image records, valid and forged, and the program's verdict on both.

#include "verify/record.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/file.hpp"
#include "base/hash.hpp"
#include "image/store/store.hpp"
#include "protocol/image_record.hpp"
#include "registry/manifest.hpp"
#include "unit/catch2_compat.hpp"
#include "unit/image/helpers.hpp"
#include "unit/image/samples/layer_image.hpp"

using namespace spc;
using namespace spc::test;

namespace {

const std::string kFacts("fact=os=Debian 12\0labels={}\0", 28);

Digest blob_of(std::size_t number) { return Sha256::of("blob " + std::to_string(number)); }

/// A registry's documents of an image, and the record derived from them.
struct PulledImage {
  std::string manifest;
  std::string config;
  ImageRecord record;

  [[nodiscard]] Digest name() const { return Sha256::of(manifest); }
};

std::string in_brackets(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : ",") + text;
  return "[" + all + "]";
}

std::string descriptor(const std::string& type, const Digest& digest, std::uint64_t size) {
  return R"({"mediaType":"application/vnd.oci.image.)" + type + R"(","digest":")" + digest.str() +
         R"(","size":)" + std::to_string(size) + "}";
}

/// `blobs`: the manifest's layers, of 1000 bytes each. Many layers are merged.
PulledImage image_of(const std::vector<Digest>& blobs) {
  PulledImage image;
  std::vector<std::string> diff_ids, layers;
  for (const Digest& blob : blobs) {
    diff_ids.push_back("\"" + Sha256::of(blob.str()).str() + "\"");
    layers.push_back(descriptor("layer.v1.tar+gzip", blob, 1000));
  }
  image.config =
      R"({"architecture":"amd64","os":"linux","config":{"Env":["A=b"],"Cmd":["sh"],)"
      R"("WorkingDir":"/w"},)"
      R"("rootfs":{"type":"layers","diff_ids":)" +
      in_brackets(diff_ids) + "}}";
  image.manifest = R"({"schemaVersion":2,"config":)" +
                   descriptor("config.v1+json", Sha256::of(image.config), image.config.size()) +
                   R"(,"layers":)" + in_brackets(layers) + "}";
  const auto distinct = distinct_layers(blobs);
  const auto names = layer_names(distinct);
  image.record.layer_format = kLayerFormat;
  for (const LayerRun& run : plan_runs(std::vector<std::uint64_t>(distinct.size(), 1000))) {
    image.record.layers.push_back(run.is_merged() ? merged_name(run.begin, names[run.end - 1])
                                                  : names[run.begin].alone);
  }
  image.record.settings = std::string("env=A=b\0workdir=/w\0cmd=sh\0", 26) + kFacts;
  image.record.manifest = image.manifest;
  image.record.config = image.config;
  return image;
}

PulledImage image_of(std::size_t count) {
  std::vector<Digest> blobs;
  for (std::size_t i = 0; i < count; ++i) blobs.push_back(blob_of(i));
  return image_of(blobs);
}

/// Returns the refusal of the record, empty if it is accepted.
std::string reason_for(const Digest& name, const std::string& record) {
  const auto verified = verify_record(name, record);
  if (verified) return {};
  CHECK(verified.error().kind() == ErrorKind::refused);
  return verified.error().what();
}
std::string reason_for(const PulledImage& image) {
  return reason_for(image.name(), serialize(image.record));
}

constexpr char kOtherLayers[] = "its layers are not those of its manifest";

/// Returns the program's exit status for such a file. `said` receives its output.
int status_of_program(const std::string& record, const char* manifest,
                      std::string* said = nullptr) {
  const auto file = memory_file(record), reason = memory_file();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(reason.get(), 2);
    ::dup2(file.get(), 3);
    ::fcntl(3, F_SETFD, 0);
    ::execl(SPC_LAYER_VERIFIER, "layer-verifier", manifest, nullptr);
    ::_exit(99);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (said != nullptr) *said = contents(reason.get());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

TEST_CASE("record_of_its_manifest_is_accepted") {
  for (const std::size_t count : {0U, 1U, 16U, 17U, 40U, 500U})
    CHECK(reason_for(image_of(count)) == "");
  CHECK(image_of(17).record.layers.size() == 3);  // merged
  CHECK(reason_for(image_of({blob_of(1), blob_of(2), blob_of(1)})) == "");
}

TEST_CASE("record_of_fitted_or_single_layers_is_accepted") {
  PulledImage image = image_of(20);
  std::vector<Digest> blobs;
  for (std::size_t i = 0; i < 20; ++i) blobs.push_back(blob_of(i));
  const auto names = layer_names(blobs);
  image.record.layers.clear();
  for (const LayerNames& one : names)
    image.record.layers.push_back(one.alone);  // pulled by a version that did not merge layers
  CHECK(reason_for(image) == "");
  image.record.layers[7] = names[7].fitted;
  CHECK(reason_for(image) == "");
}

TEST_CASE("record_without_facts_is_accepted") {
  PulledImage image = image_of(2);
  image.record.settings.resize(image.record.settings.size() - kFacts.size());
  CHECK(reason_for(image) == "");
}

TEST_CASE("record_of_other_layers_is_refused") {
  for (const std::size_t count : {2U, 20U}) {
    const PulledImage honest = image_of(count);
    auto forge = [&](const auto& change) {
      PulledImage image = honest;
      change(image.record.layers);
      return reason_for(image);
    };
    CHECK(forge([](auto& layers) { layers.back() = layer_name(blob_of(99)); }) == kOtherLayers);
    CHECK(forge([](auto& layers) { std::swap(layers[0], layers[1]); }) == kOtherLayers);
    CHECK(forge([](auto& layers) { layers.pop_back(); }) == kOtherLayers);
    CHECK(forge([](auto& layers) { layers.push_back(layer_name(blob_of(99))); }) == kOtherLayers);
    CHECK(forge([](auto& layers) { layers.push_back(layers.back()); }) == kOtherLayers);
    CHECK(forge([](auto& layers) { layers.clear(); }) == kOtherLayers);
  }
}

TEST_CASE("record_of_layers_merged_otherwise_is_refused") {
  PulledImage image = image_of(20);
  std::vector<Digest> blobs;
  for (std::size_t i = 0; i < 20; ++i) blobs.push_back(blob_of(i));
  blobs[3] = blob_of(99);  // one layer in the middle of a run
  image.record.layers[0] = merged_name(0, layer_names(blobs)[7]);
  CHECK(reason_for(image) == kOtherLayers);
}

TEST_CASE("record_of_another_manifest_is_refused") {
  const PulledImage image = image_of(2), other = image_of(3);
  CHECK(reason_for(image.name(), serialize(other.record)) == "its manifest is another image's");
  PulledImage mixed = image;
  mixed.record.manifest = other.manifest;
  mixed.record.layers = other.record.layers;
  CHECK(reason_for(mixed) == "its manifest is another image's");
  mixed.record.manifest = R"({"schemaVersion":2,"manifests":[]})";
  CHECK(reason_for(Sha256::of(mixed.record.manifest), serialize(mixed.record)) ==
        "its manifest is an index");
  mixed.record.manifest = "{";
  CHECK(has(reason_for(Sha256::of("{"), serialize(mixed.record)), "is not JSON"));
}

TEST_CASE("record_of_another_configuration_is_refused") {
  PulledImage image = image_of(2);
  image.record.config = image_of(3).config;
  CHECK(reason_for(image) == "its configuration is not the one that its manifest names");
}

TEST_CASE("record_of_other_settings_is_refused") {
  PulledImage image = image_of(2);
  const std::string honest = image.record.settings;
  image.record.settings = std::string("env=A=c\0workdir=/w\0cmd=sh\0", 26);
  CHECK(reason_for(image) == "its settings are not those of its configuration");
  image.record.settings.clear();
  CHECK(reason_for(image) == "its settings are not those of its configuration");
  for (const char* more : {"env=LD_PRELOAD=/x", "entrypoint=/x", "user=root"}) {
    image.record.settings = honest + more + '\0';
    CHECK(reason_for(image) == "it has a setting that its configuration does not have");
  }
  image.record.settings = honest + "fact=os=x";
  CHECK(reason_for(image) == "its facts are damaged");
}

TEST_CASE("record_of_another_layout_is_refused") {
  const PulledImage image = image_of(20);
  const std::string bytes = serialize(image.record);
  for (std::size_t size = 0; size < bytes.size(); size += 13)
    CHECK(reason_for(image.name(), bytes.substr(0, size)) != "");
  CHECK(reason_for(image.name(), bytes + "x") == "it is not laid out as a record");
  ImageRecordHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  header.settings = {};  // read as no settings
  std::string other = bytes;
  other.replace(0, sizeof header,
                std::string_view(reinterpret_cast<const char*>(&header), sizeof header));
  CHECK(reason_for(image.name(), other) == "it is not laid out as a record");
  PulledImage older = image;
  older.record.layer_format = kLayerFormat - 1;
  CHECK(reason_for(older) == "its layers are of another format");
}

TEST_CASE("verifier_program_refuses_forged_records_with_status_1") {
  PulledImage image = image_of(500);
  std::string said;
  CHECK(status_of_program(serialize(image.record), image.name().str().c_str(), &said) == 0);
  CHECK(said.empty());
  const std::string bytes = serialize(image.record);
  CHECK(status_of_program(bytes.substr(0, bytes.size() / 2), image.name().str().c_str()) == 1);
  CHECK(status_of_program(bytes, image_of(3).name().str().c_str()) == 1);
  CHECK(status_of_program(bytes, nullptr) == 1);  // it is not a layer
  CHECK(status_of_program(bytes, "sha256:1") == 2);
  CHECK(status_of_program(std::string(ImageRecordHeader::kMaxBytes + 1, 'x'),
                          image.name().str().c_str()) == 1);
  std::swap(image.record.layers[0], image.record.layers[1]);
  CHECK(status_of_program(serialize(image.record), image.name().str().c_str(), &said) == 1);
  CHECK(said == "layer-verifier: its layers are not those of its manifest\n");
}

TEST_CASE("verifier_program_reads_the_largest_documents_in_its_sandbox") {
  PulledImage image = image_of(1);
  std::string numbers = "1";
  while (numbers.size() < 300'000) numbers += ",1";
  image.record.config.insert(1, "\"more\":[" + numbers + "],");
  const std::string before = Sha256::of(image.config).str();
  image.record.manifest.replace(image.record.manifest.find(before), before.size(),
                                Sha256::of(image.record.config).str());
  image.manifest = image.record.manifest;
  CHECK(status_of_program(serialize(image.record), image.name().str().c_str()) == 0);
}
