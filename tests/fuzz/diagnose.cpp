// A job's output, explained by `scontainer doctor FILE`.

#include "doctor/diagnose.hpp"
#include "lib/property.hpp"

using namespace spc;
using namespace spc::fuzz;

FUZZ_TARGET(diagnose) {
  const std::string_view text = text_of(data, size);
  const auto whole = diagnose(text);
  for (const Recognised& one : whole) {
    must(one.failure != nullptr && one.times > 0 && one.line > 0, "what was found has a place");
    must(one.line + one.times - 1 <= size, "no more lines than bytes");
    must(is_printable(one.text) && one.text.size() <= 300,
         "what is shown is short and safe for a terminal");
    must(one.task.size() <= 8 && one.task.find_first_not_of("0123456789") == std::string::npos,
         "a task is a number");
  }
  // Feed it in pieces whose sizes depend on the text.
  Diagnosis diagnosis;
  for (std::size_t at = 0; at < size;) {
    const std::size_t step = 1 + data[at] % 61;
    diagnosis.read(text.substr(at, step));
    at += step;
  }
  const auto parts = diagnosis.findings();
  must(parts.size() == whole.size(), "pieces do not matter");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    must(parts[i].failure == whole[i].failure && parts[i].line == whole[i].line &&
             parts[i].times == whole[i].times && parts[i].task == whole[i].task &&
             parts[i].text == whole[i].text,
         "pieces do not matter for what is said");
  }
  return 0;
}
