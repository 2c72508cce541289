#include "launch/host/named_container.hpp"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/records.hpp"
#include "base/socket.hpp"
#include "image/reference/file_url.hpp"

namespace spc {
namespace {

std::string flag_error(const char* flag, const ContainerName& name, const char* but) {
  return formatted("--container-name: {}: the container {} {}", flag, in_quotes(name.text), but);
}

/// Two names may have one key.
Result<void> has_this_name(const ContainerName& name, const ContainerNotes& notes) {
  if (notes.name.empty() || notes.name == name.text) return {};
  return Error(ErrorKind::refused, formatted("--container-name: {} conflicts with {}",
                                             in_quotes(name.text), in_quotes(notes.name)))
      .hint("choose another name");
}

}  // namespace

ContainerNotes ContainerNotes::parse(std::string_view records) {
  ContainerNotes notes;
  for (Records record(records); record.next();) {
    const std::string_view key = record.key();
    const std::string_view value = record.value();
    if (key == "name") notes.name = value;
    if (key == "image") notes.image = value;
    if (key == "digest") notes.digest = value;
    if (key == "file") notes.file = value;
  }
  return notes;
}

std::string ContainerNotes::serialize() const {
  std::string text;
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) add_record(text, key, value);
  };
  add("name", name);
  add("image", image);
  add("digest", digest);
  add("file", file);
  return text;
}

std::string file_identity(int file, FileKind kind) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return {};
  if (kind == FileKind::brought) return "brought:" + std::to_string(status.st_size);
  std::string text = std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
  // A file is another one when it was written to; in a directory that is what it is for.
  if (S_ISREG(status.st_mode)) {
    text += ":" + std::to_string(status.st_size) + ":" + std::to_string(status.st_mtim.tv_sec) +
            "." + std::to_string(status.st_mtim.tv_nsec);
  }
  return text;
}

std::string known_as(const ImageLocation& location, const std::string& home) {
  if (location.kind == ImageLocation::Kind::remote_file)
    return name_without_secrets(location.reference);
  if (location.kind != ImageLocation::Kind::path) return location.canonical();
  const std::string path =
      location.path.starts_with("~/") ? home + location.path.substr(1) : location.path;
  char absolute[PATH_MAX];
  return ::realpath(path.c_str(), absolute) != nullptr ? absolute : path;
}

Result<NamePlan> plan_for(const ContainerName& name, std::uint32_t state,
                          const ContainerNotes& notes, const WantedImage& wanted) {
  using Use = ContainerName::Use;
  const bool running = state == TaskMessage::named_running;
  const bool exists = running || state == TaskMessage::named_stored;
  SPC_TRY(has_this_name(name, notes));
  if (name.use == Use::create && exists) {
    return Error(ErrorKind::refused,
                 flag_error("\"create\" flag was passed", name, "already exists"));
  }
  if (name.use == Use::exec && !running) {
    return Error(ErrorKind::not_found,
                 flag_error("\"exec\" flag was passed", name, "is not running"));
  }
  if (name.use == Use::no_exec && running) {
    return Error(ErrorKind::refused, flag_error("\"no_exec\" flag was passed", name, "is running"))
        .hint("two containers cannot use the same files");
  }
  if (name.use == Use::replace && running) {
    return Error(ErrorKind::refused, flag_error("\"replace\" flag was passed", name, "is running"));
  }
  if (name.use == Use::replace && wanted.image.empty()) {
    return Error(ErrorKind::invalid,
                 "--container-name: \"replace\" flag was passed, and --container-image is not set");
  }
  if (!exists) {
    if (!wanted.image.empty()) return NamePlan::make;
    return Error(
        ErrorKind::not_found,
        formatted("a container with name {} does not exist, and --container-image is not set",
                  in_quotes(name.text)));
  }
  const bool same = wanted.image.empty() || notes.image.empty() || wanted.image == notes.image ||
                    (!notes.digest.empty() && wanted.digest == notes.digest);
  if (!same) {
    return Error(ErrorKind::refused,
                 formatted("--container-name: the container {} was made from {}, not from {}",
                           in_quotes(name.text), in_quotes(notes.image), in_quotes(wanted.image)))
        .hint("choose another name, or use :replace to recreate it");
  }
  return running ? NamePlan::join : NamePlan::reuse;
}

Result<void> NamedStart::ask(const ContainerName& name, bool of_job, int agent) {
  name_ = name;
  of_job_ = of_job;
  asked_for_step_ = name.step_key().has_value();
  return send(agent);
}

Result<void> NamedStart::send(int agent) const {
  TaskMessage message;
  message.kind = TaskMessageKind::name;
  message.container = asked_for_step_ ? *name_.step_key() : name_.key();
  if (asked_for_step_) message.name_flags |= TaskMessage::name_of_step;
  if (of_job_) message.name_flags |= TaskMessage::name_of_job;
  if (name_.use == ContainerName::Use::replace) message.name_flags |= TaskMessage::name_replace;
  return send_struct(agent, message);
}

Result<bool> NamedStart::take_answer(const TaskMessage& answer, std::vector<UniqueFd> notes,
                                     int agent) {
  if (asked_for_step_ && answer.named_state == TaskMessage::named_new) {
    asked_for_step_ = false;
    SPC_TRY(send(agent));
    return false;
  }
  state_ = answer.named_state;
  running_ = {answer.namespaces, (answer.start_flags & TaskMessage::start_read_only) != 0,
              answer.upper_size};
  if (notes.size() == 1) file_ = std::move(notes.front());
  constexpr std::size_t kSane = 64 << 10;
  if (file_)
    notes_ = ContainerNotes::parse(
        SPC_TRY_DURING("read the container's notes", read_file(file_.get(), kSane)));
  if (asked_for_step_) notes_.name.clear();  // it may have a name of its own
  return true;
}

Result<void> NamedStart::decide(const WantedImage& wanted) {
  if (state_ == TaskMessage::named_running && !asked_for_step_ && notes_.name.empty()) {
    return Error(ErrorKind::refused,
                 formatted("--container-name: the container {} was removed, and is still running",
                           in_quotes(name_.text)))
        .hint("choose another name, or wait until its last step has ended");
  }
  plan_ = SPC_TRY(plan_for(name_, state_, notes_, wanted));
  return {};
}

void NamedStart::will_be(const std::string& image, const std::string& file) {
  fresh_ = true;
  notes_ = ContainerNotes{.name = name_.text, .image = image, .digest = {}, .file = file};
}

Result<void> NamedStart::must_be_the_same(const std::string& file) const {
  if (file == notes_.file) return {};
  return Error(ErrorKind::refused,
               formatted("--container-name: {}, which the container {} was made from, has changed",
                         in_quotes(notes_.image), in_quotes(name_.text)))
      .hint(formatted("use --container-name={}:replace with --container-image to recreate it",
                      name_.text));
}

Result<void> NamedStart::write(const Digest& manifest) {
  if (!fresh_) return {};
  if (manifest != Digest()) notes_.digest = manifest.str();
  SPC_TRY_DURING("write the container's notes", write_all(file_.get(), notes_.serialize()));
  return {};
}

void NamedStart::take_back() {
  if (fresh_) [[maybe_unused]]
    const int emptied = ::ftruncate(file_.get(), 0);
}

Result<void> NamedStart::remove() {
  const bool exists = state_ != TaskMessage::named_new && !notes_.name.empty();
  if (!exists)
    return Error(ErrorKind::not_found,
                 flag_error("\"remove\" flag was passed", name_, "does not exist"));
  SPC_TRY(has_this_name(name_, notes_));
  if (::ftruncate(file_.get(), 0) == 0) return {};
  return Error::from_errno(errno, "remove the container " + in_quotes(name_.text));
}

}  // namespace spc
