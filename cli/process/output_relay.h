// OutputRelay: passes what a rank writes on to one of our own descriptors and remembers its last
// lines. Single-threaded; never blocks on the rank.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

#include "cli/process/pipe.h"
#include "rendezvous/unique_fd.h"

namespace coupler::cli {

// The last lines of a text that comes in pieces. A line redrawn by carriage returns (a progress
// bar) counts once, with its last state.
class LineTail {
 public:
  void add(std::string_view text);
  std::deque<std::string> lines() const;  // oldest first, an unfinished one included

 private:
  std::deque<std::string> lines_;
  std::string current_;
  bool redraw_ = false;  // a carriage return came: the next character starts the line anew
};

class OutputRelay {
 public:
  // Reads from `from`, writes to `to`; with a prefix line by line, each with the prefix before it,
  // else at once and unchanged. copy: gets all of it unchanged, too, where it is a descriptor.
  OutputRelay(UniqueFd from, int to, std::string prefix, UniqueFd copy = {});

  int fd() const { return from_.get(); }  // to poll; -1 after the end
  void pump();                            // takes what is there
  void finish();                          // after the rank has ended: the rest, and a last line
  const LineTail& tail() const { return tail_; }

 private:
  void forward(std::string_view text);

  UniqueFd from_;
  int to_;
  UniqueFd copy_;
  std::string prefix_;
  std::string partial_;  // an unfinished line, with a prefix only
  LineTail tail_;
};

// Writes all of it; gives up silently where the reader is gone (as a program in a pipe does).
void write_all(int fd, std::string_view text);

// Opens a file to append to, made where it is missing; nothing for "". Throws Error(kIo) naming it.
UniqueFd open_log(const std::string& path);

// A pipe whose reading end is ours and never blocks.
Pipe make_output_pipe();

}  // namespace coupler::cli
