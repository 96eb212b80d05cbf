;;;; The user's state machine: an object of any class of the user's, with methods of these generic
;;;; functions, each of which returns the answer to a message. A message without a method is
;;;; answered with :unimplemented.
;;;;
;;;; Each method gets :CALL, the server's end of the call that carries the message: CALL-PEER
;;;; returns its peer's address, CLGRPC.AUTHORITY:CALL-IDENTITY the identity in its certificate.
;;;; The service has already compared the group, the sender and the receiver.
;;;;
;;;; The methods are called on threads of the server, perhaps several at once for different
;;;; messages; they must protect common data by locks. Requests that arrive on one stream are
;;;; handled one after the other, in their order, and so are the chunks of a snapshot. A method that
;;;; signals an error ends its call or stream with :internal, or with the status that it gives to
;;;; FAIL.

(in-package #:clgrpc.raft)

(defun refuse (status control &rest arguments)
  "End the call that is being handled with STATUS and a text."
  (status:fail status (apply #'format nil control arguments)))

(defun not-handled (state message)
  (refuse :unimplemented "~A does not handle ~A" (type-of state) message))

(defgeneric handle-pre-vote (state request &key &allow-other-keys)
  (:documentation "Answer REQUEST, a RequestVoteRequest that asks whether STATE would vote for the
candidate, by a RequestVoteResponse. A pre-vote changes no term and grants no vote. On a server's
thread.")
  (:method (state request &key)
    (declare (ignore request))
    (not-handled state "PreVote")))

(defgeneric handle-request-vote (state request &key &allow-other-keys)
  (:documentation "Answer REQUEST, a RequestVoteRequest, by a RequestVoteResponse. The vote and the
term are on disk when this returns. On a server's thread.")
  (:method (state request &key)
    (declare (ignore request))
    (not-handled state "RequestVote")))

(defgeneric handle-append-entries (state request &key &allow-other-keys)
  (:documentation "Answer REQUEST, an AppendEntriesRequest, by an AppendEntriesResponse. The
entries are on disk when this returns with success. The entries belong to STATE, which may keep
them: nothing else changes them or their data. This is called on a server's thread; requests of one
stream are handled in their order.")
  (:method (state request &key)
    (declare (ignore request))
    (not-handled state "AppendEntries")))

(defgeneric handle-timeout-now (state request &key &allow-other-keys)
  (:documentation "Answer REQUEST, a TimeoutNowRequest, by a TimeoutNowResponse, and begin an
election. On a server's thread.")
  (:method (state request &key)
    (declare (ignore request))
    (not-handled state "TimeoutNow")))

(defgeneric kept-snapshot (state header &key &allow-other-keys)
  (:documentation "A leader begins to send the snapshot that HEADER, a SnapshotHeader, describes,
and this process has received nothing of it. Return two values: how many of its first octets STATE
has kept from an earlier process, and the CRC-32C of these octets (see CRC32C), computed from the
octets themselves. The leader continues after the kept octets. Without a method the number is 0, and
the leader sends the snapshot from its beginning. Snapshots are the same if their
last_included_index, last_included_term, octets and crc32c are. On a server's thread.")
  (:method (state header &key)
    (declare (ignore state header))
    (values 0 0)))

(defgeneric handle-install-snapshot (state header offset &key &allow-other-keys)
  (:documentation "A leader begins to send the snapshot that HEADER, a SnapshotHeader, describes, or
continues: OFFSET octets of it have been received before. Return an InstallSnapshotResponse. A
response with a term above HEADER's refuses the snapshot. INSTALLED means that STATE has all
contents of the snapshot, for instance because the leader has lost the response to its last chunk;
then nothing is sent. In both cases, and if the method calls FAIL, the kept part of another snapshot
remains. Otherwise, if OFFSET is 0, forget the kept part of another snapshot. On a server's thread;
never two of the methods for snapshots at once.")
  (:method (state header offset &key)
    (declare (ignore header offset))
    (not-handled state "InstallSnapshot")))

(defgeneric handle-snapshot-chunk (state header offset data &key &allow-other-keys)
  (:documentation "Keep DATA, octets that belong to STATE: the part of HEADER's snapshot from OFFSET
on, directly after the part that is kept. The octets' check sum was right. If the method signals an
error, or is interrupted, it is called again with the same OFFSET. On a server's thread.")
  (:method (state header offset data &key)
    (declare (ignore header offset data))
    (not-handled state "InstallSnapshot")))

(defgeneric handle-snapshot-end (state header &key &allow-other-keys)
  (:documentation "All of the snapshot of HEADER has been received, and its check sum is right:
install it. Return an InstallSnapshotResponse with the term. The snapshot is on disk when this
returns. If the method signals an error, the leader may send the whole snapshot again. On a server's
thread.")
  (:method (state header &key)
    (declare (ignore header))
    (not-handled state "InstallSnapshot")))
