// Which ranks can share memory, and what those that cannot are told.
#include "shm/meeting.h"

#include <gtest/gtest.h>

#include <string>

namespace db::shm {
namespace {

Announcement announcement() {
  Announcement one;
  one.version = "0.1.0-1";
  one.size = 4;
  one.boot_id = "boot";
  one.pid_space = one.net_space = one.user_space = "1";
  one.user = 1000;
  one.pid = 4711;
  one.sees_host = true;
  one.host = "node1";
  return one;
}

TEST(Meeting, Announcement_IsReadAsWritten) {
  Announcement read;
  ASSERT_TRUE(Announcement::decode(Announcement::own(7).encode(), &read));
  EXPECT_EQ(read.encode(), Announcement::own(7).encode());
  EXPECT_EQ(read.size, 7);
  EXPECT_FALSE(Announcement::decode("gloo_cpu/2 4", &read));
  EXPECT_FALSE(Announcement::decode("", &read));
}

TEST(Meeting, RanksOfOneMachineAndUser_MeetThroughProc) {
  Reach reach = Reach::kAbstract;
  EXPECT_TRUE(compare(announcement(), announcement(), 1, &reach).ok());
  EXPECT_EQ(reach, Reach::kProc);
}

TEST(Meeting, OtherNetworkButVisibleProcesses_MeetThroughProc) {
  Announcement theirs = announcement();
  theirs.net_space = "2";
  Reach reach = Reach::kAbstract;
  EXPECT_TRUE(compare(announcement(), theirs, 1, &reach).ok());
  EXPECT_EQ(reach, Reach::kProc);
}

TEST(Meeting, HiddenProcesses_MeetByAnAbstractName) {
  for (const char* space : {"1", "2"}) {
    Announcement theirs = announcement();
    theirs.pid_space = theirs.user_space = space;
    theirs.sees_host = false;
    Reach reach = Reach::kProc;
    EXPECT_TRUE(compare(announcement(), theirs, 1, &reach).ok());
    EXPECT_EQ(reach, Reach::kAbstract);
  }
}

TEST(Meeting, Sees_OwnProcessButNoneOfAnotherNamespaceOrMachine) {
  const Announcement own = Announcement::own(2);
  EXPECT_TRUE(own.sees(own));
  Announcement other = own;
  other.pid_space += "0";
  EXPECT_FALSE(own.sees(other));
  other = own;
  other.boot_id += "0";
  EXPECT_FALSE(own.sees(other));
  other = own;
  other.pid = 0;  // there is none
  EXPECT_FALSE(own.sees(other));
}

void expect_difference(const Announcement& theirs, db_status status, const std::string& text) {
  Reach reach = Reach::kProc;
  const Failure failure = compare(announcement(), theirs, 3, &reach);
  EXPECT_EQ(failure.status, status);
  EXPECT_EQ(failure.failed_rank, 3);
  EXPECT_NE(failure.message.find("rank 3 "), std::string::npos) << failure.message;
  EXPECT_NE(failure.message.find(text), std::string::npos) << failure.message;
}

TEST(Meeting, RanksThatCannotShareMemory_AreToldWhyAndWhatToDo) {
  Announcement theirs = announcement();
  theirs.boot_id = "another";
  theirs.host = "node2";
  expect_difference(theirs, DB_ERR_UNSUPPORTED, "runs on the machine node2, rank 0 on node1");
  expect_difference(theirs, DB_ERR_UNSUPPORTED, "set backend.use to \"hierarchical\"");
  theirs = announcement();
  theirs.user = 1001;
  expect_difference(theirs, DB_ERR_UNSUPPORTED, "start all ranks as the same user");
  theirs = announcement();
  theirs.version = "0.2.0-2";
  expect_difference(theirs, DB_ERR_MISMATCH, "has version 0.2.0-2 of the shm plugin");
  theirs = announcement();
  theirs.size = 5;
  expect_difference(theirs, DB_ERR_MISMATCH, "has 5 ranks, but rank 0 has 4");
  theirs = announcement();
  theirs.pid_space = theirs.net_space = "2";
  theirs.sees_host = false;
  expect_difference(theirs, DB_ERR_UNSUPPORTED, "docker: --network host");
}

}  // namespace
}  // namespace db::shm
