#include "image/user_source/oci_layout.hpp"

#include <algorithm>

#include "base/format.hpp"
#include "base/sha256.hpp"
#include "image/reference/reference.hpp"
#include "image/registry/json.hpp"

namespace spc::user_source {
namespace {

constexpr std::size_t kMaxDocument = 4 << 20;
constexpr std::size_t kMaxIndexEntries = 2000;

std::string blob_name(const Digest& digest) { return "blobs/sha256/" + digest.hex(); }

struct Entry {
  Digest digest;
  std::string media_type;
  std::vector<std::string> names;
  bool has_platform = false;
};

class LayoutImage final : public LocalImage {
 public:
  LayoutImage(std::unique_ptr<NamedFiles> files, FilePart document)
      : files_(std::move(files)), document_(std::move(document)) {}
  [[nodiscard]] const FilePart& document() const override { return document_; }
  Result<std::optional<FilePart>> blob(const Digest& digest) const override {
    return files_->find(blob_name(digest));
  }

 private:
  std::unique_ptr<NamedFiles> files_;
  FilePart document_;
};

Result<void> check_layout(const NamedFiles& files, const std::string& name) {
  const auto marker = SPC_TRY(files.find("oci-layout"));
  if (!marker)
    return Error(ErrorKind::invalid,
                 in_quotes(name) + " is not an OCI image layout: it has no file oci-layout");
  const auto text = SPC_TRY(read_part(*marker, 64 << 10, "oci-layout"));
  const Json document = SPC_TRY(parse_json_object(text, "oci-layout"));
  const auto version = SPC_TRY_DURING("oci-layout", document.text("imageLayoutVersion"));
  if (version && version->starts_with("1.")) return {};
  return Error(ErrorKind::invalid, in_quotes(name) + ": its image layout is not of version 1");
}

Result<std::vector<Entry>> entries_of(const Json& index) {
  std::vector<Entry> entries;
  const auto* items = SPC_TRY(index.list("manifests"));
  if (items->size() > kMaxIndexEntries)
    return Error(ErrorKind::invalid, formatted("lists more than {} images", kMaxIndexEntries));
  for (const Json& item : *items) {
    if (!item.is_object()) return Error(ErrorKind::corrupt, "an entry is not an object");
    Entry entry;
    const auto digest = SPC_TRY(item.text("digest"));
    entry.digest = SPC_TRY(Digest::parse(digest.value_or("")));
    entry.media_type = SPC_TRY(item.text("mediaType")).value_or("");
    entry.has_platform = item.find("platform") != nullptr;
    if (const Json* annotations = item.find("annotations");
        annotations != nullptr && annotations->is_object()) {
      for (const char* key : {"io.containerd.image.name", "org.opencontainers.image.ref.name"}) {
        if (auto name = SPC_TRY(annotations->text(key)); name && !name->empty())
          entry.names.push_back(*std::move(name));
      }
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

bool is_called(const Entry& entry, const std::string& reference) {
  if (entry.digest.str() == reference) return true;
  return std::any_of(entry.names.begin(), entry.names.end(),
                     [&](const auto& name) { return is_same_name(name, reference); });
}

std::vector<std::string> names_of(const std::vector<Entry>& entries) {
  std::vector<std::string> names;
  for (const Entry& entry : entries)
    names.push_back(entry.names.empty() ? entry.digest.str() : entry.names.front());
  return names;
}

/// The wanted entry; null when the whole list is wanted.
Result<const Entry*> choose(const std::vector<Entry>& entries, const std::string& reference,
                            const std::string& name) {
  std::vector<const Entry*> fitting;
  for (const Entry& entry : entries) {
    if (reference.empty() || is_called(entry, reference)) fitting.push_back(&entry);
  }
  const auto same = [&](const Entry* one) { return one->digest == fitting.front()->digest; };
  if (!fitting.empty() && std::all_of(fitting.begin(), fitting.end(), same)) return fitting.front();
  const auto one_of_a_list = [](const Entry& entry) {
    return entry.has_platform && entry.names.empty();
  };
  if (reference.empty() && !entries.empty() &&
      std::all_of(entries.begin(), entries.end(), one_of_a_list)) {
    return static_cast<const Entry*>(nullptr);
  }
  return no_such_image(name, reference, names_of(entries));
}

/// The document that a digest names. import sees only its bytes, so whether they are the right ones
/// is checked here.
Result<FilePart> find_document(const NamedFiles& files, const Digest& digest,
                               const std::string& media_type) {
  const std::string what = "manifest " + in_quotes(digest.str());
  auto part = SPC_TRY(files.find(blob_name(digest)));
  if (!part)
    return Error(ErrorKind::corrupt, what + ": is listed but missing")
        .hint("the image is incomplete");
  const auto bytes = SPC_TRY(read_part(*part, kMaxDocument, what));
  if (Sha256::of(bytes) != digest) {
    return Error(ErrorKind::corrupt,
                 formatted("{}: has digest {} instead", what, Sha256::of(bytes).str()))
        .hint("the image is corrupt");
  }
  part->media_type = media_type;
  return *std::move(part);
}

}  // namespace

Error no_such_image(const std::string& name, const std::string& reference,
                    const std::vector<std::string>& there) {
  constexpr std::size_t kShown = 12;
  std::string list;
  for (std::size_t i = 0; i < there.size() && i < kShown; ++i)
    list += (i == 0 ? "" : ", ") + in_quotes(there[i]);
  if (there.size() > kShown) list += formatted(" and {} more", there.size() - kShown);
  if (there.empty()) return {ErrorKind::not_found, in_quotes(name) + " contains no image"};
  if (reference.empty()) {
    return Error(ErrorKind::invalid,
                 formatted("{} contains several images: {}", in_quotes(name), list))
        .hint("append one of them after a ':'");
  }
  return Error(ErrorKind::not_found,
               formatted("{} has no image {}", in_quotes(name), in_quotes(reference)))
      .hint("it has " + list);
}

bool is_same_name(const std::string& one, const std::string& other) {
  if (one == other) return true;
  const auto first = ImageReference::parse(one);
  const auto second = ImageReference::parse(other);
  return first && second && first->canonical() == second->canonical();
}

Result<std::unique_ptr<LocalImage>> open_oci_layout(std::unique_ptr<NamedFiles> files,
                                                    const std::string& reference,
                                                    const std::string& name) {
  SPC_TRY(check_layout(*files, name));
  auto list = SPC_TRY(files->find("index.json"));
  if (!list)
    return Error(ErrorKind::invalid,
                 in_quotes(name) + " is not an OCI image layout: it has no file index.json");
  const auto text = SPC_TRY(read_part(*list, kMaxDocument, "index.json"));
  const Json index = SPC_TRY(parse_json_object(text, "index.json"));
  const auto entries = SPC_TRY_DURING("index.json", entries_of(index));

  // A digest may also name an image that only another list names.
  if (const auto digest = Digest::parse(reference);
      digest && SPC_TRY(files->find(blob_name(*digest)))) {
    auto document = SPC_TRY(find_document(*files, *digest, ""));
    return std::unique_ptr<LocalImage>(new LayoutImage(std::move(files), std::move(document)));
  }
  const Entry* entry = SPC_TRY(choose(entries, reference, name));
  auto document = entry == nullptr
                      ? *std::move(list)
                      : SPC_TRY(find_document(*files, entry->digest, entry->media_type));
  return std::unique_ptr<LocalImage>(new LayoutImage(std::move(files), std::move(document)));
}

}  // namespace spc::user_source
