;;;; Keys of the store. All keys of a namespace begin with its root; below it are
;;;;
;;;;   state/ID                          the head of a WorkflowState, see layout.lisp
;;;;   steps/ID/RUN-CHUNK                StoredSteps, which the head has not
;;;;   history/ID/NUMBER                 StoredChanges, which the head has not; the last number
;;;;   data/ID/…                         inputs and results that are not small, and signals; these
;;;;                                     never change
;;;;   by/STATUS/AGE/ID                  for lists: the time of its end, and its type
;;;;   schedules/ID                      a ScheduleState
;;;;   scheduled/ID                      a StartRequest, for the workflows of the schedule
;;;;   index/ready/KIND/SHARD/TIME/ID    a task that can be claimed
;;;;   index/due/SHARD/TIME/ID           a time at which an event is due without a call
;;;;   index/due/SHARD/TIME/ERRAND/ID    likewise, to other workflows: see errand.lisp
;;;;   index/sessions/SESSION            a worker; it ends with a lease, see session-lease.lisp
;;;;   claims/SESSION/ID                 a task that a worker has claimed
;;;;   index/nodes/LEASE                 a node, as long as its lease lasts, and the dates it has
;;;;   date                              the nodes' date, from time to time
;;;;
;;;; TIME is milliseconds in 16 hexadecimal digits, so keys sort by their times. AGE is the time of
;;;; the start, subtracted from a far date, so the newest is first. Workers begin to look for tasks
;;;; at a random shard, so that they do not all take the same task; within a shard the oldest comes
;;;; first. Each shard of the due keys belongs to one node.

(in-package #:clgrpc.workflow)

(defconstant +last-ms+ (1- (expt 16 15))
  "A time that is later than every time that a workflow may have.")
(defconstant +shards+ 16 "The number of queues of ready tasks of a kind, and of due events.")

(defun check-namespace (namespace)
  (check-type namespace string)
  (handler-case (check-name namespace "a namespace")
    (workflow-error (error) (misuse "~A" error))))

(defun root-of (namespace)
  (format nil "clgrpc/workflows/~A/" (check-namespace namespace)))

(defun key (root &rest parts)
  "The key of PARTS, strings, below ROOT."
  (declare (dynamic-extent parts))
  (let* ((length (loop for part in parts sum (1+ (length (the string part))) into sum
                       finally (return (+ (length (the string root)) (max 0 (1- sum))))))
         (key (make-string length))
         (place (length root)))
    (declare (type index place))
    (replace key root)
    (loop for (part . more) on parts
          do (replace key (the string part) :start1 place)
             (incf place (length part))
             (when more
               (setf (char key place) #\/)
               (incf place)))
    key))

(defun hexadecimal (number digits)
  "NUMBER, which is not negative, in lower-case hexadecimal, with at least DIGITS digits."
  (let* ((count (max digits (ceiling (integer-length number) 4))) (text (make-string count)))
    (loop for i from (1- count) downto 0
          do (setf (char text i) (char "0123456789abcdef" (ldb (byte 4 0) number))
                   number (ash number -4)))
    text))

(defun time-text (ms)
  (hexadecimal (max 0 ms) 16))

(defun age-text (ms)
  "The AGE in the keys of a workflow that began at MS. Sorted by this text, later workflows come
before earlier ones."
  (time-text (- +last-ms+ ms)))

(defun text-time (text)
  "The time that TIME-TEXT writes as TEXT, or nil if TEXT is not a time."
  (and (= 16 (length text))
       (every (lambda (char) (find char "0123456789abcdef")) text)
       (parse-integer text :radix 16)))

(defun shard-text (shard)
  "SHARD, a number, in the form of keys: a hexadecimal digit."
  (hexadecimal shard 1))

(defun shard-of (id)
  "The shard of the workflow ID, a hexadecimal digit."
  (shard-text (mod (balance:xxh64 (string-octets id)) +shards+)))

(defun number-text (number)
  "The text of NUMBER, a change's, in keys: the texts sort as their numbers do."
  (if (< number 100000000) (format nil "~8,'0D" number) (format nil "a~20,'0D" number)))

(defun status-text (status)
  "STATUS of workflows in the form of keys. Refuse a peer's number that has no name."
  (unless (keywordp status) (refuse :invalid-request "~A is not a status of workflows" status))
  (string-downcase status))

(defun key-behind (prefix)
  "The first key after all keys that begin with PREFIX, which ends with /."
  (format nil "~A0" (string-right-trim "/" prefix)))

(defun key-parts (root key)
  "The parts of KEY below ROOT."
  (uiop:split-string (subseq key (length root)) :separator "/"))

;;; Other programs may put any keys and values there. Entries that no node has put are skipped: one
;;; such entry must not keep nodes from all others.

(defun entry-name (entry prefix)
  "The key of ENTRY after PREFIX, with which it begins; nil if it is not UTF-8, so that no node has
put it."
  (handler-case (subseq (octets-string (etcd:entry-key-octets entry)) (length prefix))
    (clgrpc-error () nil)))

(defun lease-name (lease)
  "The name of the node whose entry has LEASE, a number."
  (format nil "~(~X~)" lease))

(defun node-entry-p (entry name)
  "True if ENTRY belongs to the node NAME, so that the entry ends with this node. A copy of an
entry, as in a store that was copied, has no lease or another lease. Such a copy would represent for
ever a node that does not exist."
  (and (plusp (etcd:entry-lease entry))
       (equal name (lease-name (etcd:entry-lease entry)))))

(defun node-entry-name (entry prefix)
  "The name of the node whose entry is ENTRY, whose key begins with PREFIX; nil if ENTRY is not a
node's."
  (let ((name (entry-name entry prefix)))
    (and (node-entry-p entry name) name)))

(defun entry-text (entry)
  "The value of ENTRY as text; empty if it is not UTF-8, so that no node has put it."
  (handler-case (octets-string (etcd:entry-value entry))
    (clgrpc-error () "")))

(defun key-after (entry)
  "The first key after the key of ENTRY, octets."
  (concatenate 'octets (etcd:entry-key-octets entry) (make-octets 1)))

(defun entry-parts (entry root)
  "The parts of ENTRY's key below ROOT; the empty list if no node has put it."
  (let ((name (entry-name entry root)))
    (and name (key-parts "" name))))

(defun key-id (key)
  "The last part of KEY: the id of a workflow."
  (subseq key (1+ (position #\/ key :from-end t))))
