#include "cli/launch/host_file.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "refusal.h"

namespace coupler::cli {
namespace {

class HostFileTest : public ::testing::Test {
 protected:
  HostFileTest() {
    char name[] = "/tmp/coupler-hostfile-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~HostFileTest() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& text) const {
    const auto path = folder_ + "/hosts";
    std::ofstream(path) << text;
    return path;
  }
  HostFile read(const std::string& text) const { return read_host_file(write(text)); }
  std::string refused(const std::string& text) const {
    return refusal([&] { read(text); });
  }

  std::string folder_;
};

TEST_F(HostFileTest, BothGrammars_AreRead_CommentsLeftOut) {
  const auto file =
      read("# a cluster\nnode1 slots=4  # fast\n\nnode2:2\n node3\t\n10.0.0.7 slots=1\n");
  EXPECT_EQ(host_list(file), "node1:4,node2:2,node3:1,10.0.0.7:1");
  EXPECT_EQ(file.slots(), 8);
}

TEST_F(HostFileTest, MaxSlots_IsTaken_ARepeatedHost_TakesTheSum) {
  EXPECT_EQ(host_list(read("a slots=2 max_slots=4\nb slots=1\na slots=1 max-slots=1\n")),
            "a:3,b:1");
}

TEST_F(HostFileTest, IPv6AndWindowsLineEnds_AreRead) {
  const auto file = read("fe80::1 slots=2\r\nnode:3\r\n");
  EXPECT_EQ(file.hosts.at(0).host, "fe80::1");
  EXPECT_EQ(file.slots(), 5);
}

TEST_F(HostFileTest, Typos_AreRefused_NamingFileAndLine) {
  const struct {
    const char *text, *line, *says;
  } rows[] = {
      {"a slots=2\nb slot=2\n", ":2:", "did you mean 'slots=…'?"},
      {"a slots=two\n", ":1:", "'two' is not a number of processes"},
      {"a slots=0\n", ":1:", "'0' is not a number"},
      {"a slots=-1\n", ":1:", "'-1' is not a number"},
      {"a slots=2x\n", ":1:", "'2x' is not a number"},
      {"\n\n#\na 4\n", ":4:", "'4' is neither a machine's name nor key=value"},
      {"a:\n", ":1:", "'' is not a number"},
      {"a:4 slots=4\n", ":1:", "given twice"},
      {"slots=4\n", ":1:", "'slots=4' is not a valid host name"},
      {"-x slots=4\n", ":1:", "'-x' is not a valid host name"},
      {"a user=bob\n", ":1:", ".ssh/config"},
      {"a slots=99999999999\n", ":1:", "not a number"},
  };
  for (const auto& row : rows) {
    const auto text = refused(row.text);
    EXPECT_SAYS(text, folder_ + "/hosts" + row.line);
    EXPECT_SAYS(text, row.says);
  }
}

TEST_F(HostFileTest, FilesThatAreNone_AreRefused_NamingThem) {
  EXPECT_SAYS(refused("# nothing\n"), "names no machine");
  EXPECT_SAYS(refusal([&] { read_host_file(folder_ + "/none"); }), "No such file");
  EXPECT_SAYS(refusal([&] { read_host_file(folder_); }), "it is a folder");
}

TEST_F(HostFileTest, OwnNames_AreThisMachine_OthersAreNot) {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  for (const std::string& own : {std::string("localhost"), std::string("127.0.0.1"),
                                 std::string("127.0.1.1"), std::string("::1"), std::string(name)}) {
    EXPECT_TRUE(is_this_machine(own)) << own;
  }
  for (const char* other : {"node1", "192.0.2.7", "localhost4you"}) {
    EXPECT_FALSE(is_this_machine(other)) << other;
  }
}

}  // namespace
}  // namespace coupler::cli
