;;;; Nodes, workers, users and a watch that meet in any order, from a seed, on the store of the
;;;; engine in memory. All of it runs on one thread: a request to the store is where another one of
;;;; them may act, before it or behind it, so what a node has read may be old when its transaction
;;;; comes; there a node dies, or its request or the answer is lost. Workers stall, die, come back,
;;;; send reports and claims again, and what was sent may come a second time much later. Clocks
;;;; jump. Workflows start others, and begin again; they are forgotten, and their ids used again.
;;;;
;;;; What must hold is looked at in what the watch was told, in what was acknowledged, and in the
;;;; store, in which nothing is left in the end.

(in-package #:clgrpc.tests.workflow)

;;; The store, by the hand of a case

(defclass place (etcdserverpb:kv etcdserverpb:lease)
  ((store :reader place-store           ; in memory
          :initform (memory::make-store (memory::make-limits :octets (expt 2 28)
                                                             :revisions 1000000 :leases 10000)))
   (now :initform 0 :accessor place-now) ; nanoseconds, by which leases end
   (apart :initform nil :accessor place-apart) ; no renewal reaches it
   ;; called with :before or :after a request, and whether that may change something
   (meddler :initform (constantly nil) :accessor place-meddler)))

(defun call-at (place writes function)
  (let ((store (place-store place)))
    (funcall (place-meddler place) :before writes)
    (end-of-leases place)
    (prog1 (funcall function store)
      (funcall (place-meddler place) :after writes))))

(defmacro at-place ((place store &key writes) &body body)
  `(call-at ,place ,writes (lambda (,store) ,@body)))

(defun end-of-leases (place)
  "End the leases of PLACE whose time is over."
  (memory::end-leases (place-store place) (place-now place)))

(defun revision-of (place)
  (memory::store-revision (place-store place)))

(defun items-of (place)
  "The tree of what is in PLACE."
  (memory::newest (place-store place)))

(defun item-at (place key)
  (memory::tree-item (items-of place) (string-octets key)))

(defun keys-in (place prefix)
  "The keys in PLACE that begin with PREFIX, without it, in order."
  (let ((keys '()))
    (memory::map-range (lambda (item)
                         (push (subseq (octets-string (memory::item-key item)) (length prefix))
                               keys))
                       (items-of place) (string-octets prefix)
                       (string-octets (format nil "~A~C" prefix (code-char #x10FFFF))))
    (nreverse keys)))

(defun message-of (item)
  "The KeyValue of ITEM, of the store."
  (memory::key-value item))

(defun changes-at (place revision)
  "The changes of PLACE at REVISION, as a watch of the store tells them."
  (loop for change across (memory::record-changes (memory::record-at (place-store place) revision))
        collect (etcd::make-change (if (memory::removal-p change) :removal :put)
                                   (etcd::entry-of (message-of (memory::change-item change)))
                                   nil)))

(defmethod etcdserverpb.kv:range ((place place) request &key)
  (at-place (place store) (funcall (memory::answer-range store request))))

(defmethod etcdserverpb.kv:put ((place place) request &key)
  (at-place (place store :writes t) (memory::answer-put store request)))

(defmethod etcdserverpb.kv:delete-range ((place place) request &key)
  (at-place (place store :writes t) (funcall (memory::answer-removal store request))))

(defmethod etcdserverpb.kv:txn ((place place) request &key)
  (at-place (place store :writes t) (memory::answer-transaction store request)))

(defmethod etcdserverpb.lease:lease-grant ((place place) request &key)
  (at-place (place store)
    (let ((lease (memory::grant-lease store 0 (etcdserverpb:lease-grant-request-ttl request)
                                      (place-now place))))
      (etcdserverpb:make-lease-grant-response :id (memory::lease-number lease)
                                              :ttl (memory::lease-seconds lease)))))

(defmethod etcdserverpb.lease:lease-revoke ((place place) request &key)
  (at-place (place store :writes t)
    (memory::revoke-lease store (or (memory::find-lease
                                     store (etcdserverpb:lease-revoke-request-id request))
                                    (memory::refuse :lease-not-found)))
    (etcdserverpb:make-lease-revoke-response)))

(defmethod etcdserverpb.lease:lease-time-to-live ((place place) request &key)
  (at-place (place store)
    (let* ((number (etcdserverpb:lease-time-to-live-request-id request))
           (lease (memory::find-lease store number)))
      (etcdserverpb:make-lease-time-to-live-response
       :id number :ttl (if lease 1 -1) :granted-ttl (if lease (memory::lease-seconds lease) 0)))))

(defmethod etcdserverpb.lease:lease-keep-alive ((place place) requests &key call)
  (declare (ignore requests))
  (rpc:on-half-close call (lambda () (rpc:finish call)))
  (rpc:on-message call (lambda (request)
                         (let* ((number (etcdserverpb:lease-keep-alive-request-id request))
                                (lease (memory::find-lease (place-store place) number)))
                           (if (place-apart place)
                               (rpc:finish call :status :unknown)
                               (rpc:try-send call (etcdserverpb:make-lease-keep-alive-response
                                                   :id number
                                                   :ttl (if lease
                                                            (memory::renew-lease
                                                             lease (place-now place))
                                                            0)))))))
  call)

;;; A case

(defstruct (hand (:copier nil))
  "What does one task of a worker at a time."
  (task nil)                            ; that it has, or nil
  (report nil)                          ; of it, a request that no answer has come to, or nil
  (busy nil))                           ; it is calling

(defstruct (crew (:copier nil))
  "A worker."
  (session nil)                         ; or nil
  (busy nil)                            ; it opens one, or sends a heartbeat
  (heartbeats nil)                      ; (node . stream) of them, or nil
  (hands (loop repeat 2 collect (make-hand))))

(defstruct (user (:copier nil))
  "Who starts the workflow of an id, and starts it again with other steps when that is forgotten."
  (id "")
  (request nil)                         ; by which it was started last
  (acknowledged nil)                    ; that was answered
  (starts 0)                            ; how many requests there were
  (signals '())                         ; requests that no answer has come to
  (busy nil))

(defstruct (affair (:copier nil))
  "A case."
  (random nil)                          ; from its seed
  (place (make-instance 'place))
  (etcd nil)                            ; its client
  (nodes '())                           ; (service . seconds that its clock is ahead)
  (gone '())                            ; services that were there before
  (users '())
  (crews '())
  (sent '())                            ; (method . request), all that may come a second time
  (ready '())                           ; keys of tasks that were ready a while ago
  (quiet nil)                           ; nothing goes wrong any more
  (depth 0)                             ; how many act within each other
  (dead nil)                            ; the node that acts has died, so the store hears no more
  (actions 0)                           ; what was done
  (received (make-hash-table :test 'equal)) ; (id . fence) of tasks that a hand has got
  (acknowledged '())                    ; (id fence . result) of reports that were answered
  (signals (make-hash-table :test 'equal)) ; (id . signal-id) from :sent to :acknowledged
  (finals '())                          ; states of workflows that have ended
  (results '())                         ; (id step text) of the tasks of these
  (told '())                            ; changes that the watch was told, the last one first
  (watcher nil)
  (trouble nil))                        ; the first thing that did not hold

(defun roll (affair sides) (random sides (affair-random affair)))
(defun luck (affair percent) (< (roll affair 100) percent))
(defun one-of (affair list) (and list (elt list (roll affair (length list)))))

(defun complain (affair control &rest arguments)
  (unless (affair-trouble affair)
    (setf (affair-trouble affair) (apply #'format nil control arguments))))

(defparameter *case-limits* '(:retention-seconds 1) "Of the nodes of a case.")

(defun new-node (affair)
  "A node without threads, whose clock may be wrong."
  (let* ((ahead (if (affair-quiet affair) 0 (- (roll affair 20) 10)))
         (entry (cons nil ahead))
         (node (make-instance 'workflow-service
                              :etcd (affair-etcd affair) :root (workflow::root-of "case")
                              :health nil
                              :clock (lambda ()
                                       (max 0 (+ (place-now (affair-place affair))
                                                 (* (cdr entry) 1000000000))))
                              :limits (apply #'workflow::make-limits *case-limits*))))
    (setf (slot-value node 'workflow::random) (sb-ext:seed-random-state (roll affair 1000000))
          (car entry) node)
    entry))

(defun some-node (affair) (car (one-of affair (affair-nodes affair))))

(defun break-off ()
  "No answer comes to a request. Its client would ask again, after a pause, if this were
:unavailable."
  (clgrpc.status:fail :unknown "cut off"))

(defun meddle (affair when writes)
  "A request to the store is about to be done, or was done."
  (when (affair-dead affair) (break-off))
  (unless (affair-quiet affair)
    (when (and (< (affair-depth affair) 3) (luck affair 8)) (do-something affair))
    (when (luck affair (if (and writes (eq :after when)) 4 1))
      (setf (affair-dead affair) (luck affair 50))
      (break-off))))

(defun new-affair (seed)
  (let* ((affair (make-affair :random (sb-ext:seed-random-state seed)))
         (place (affair-place affair))
         (channel (clgrpc.inproc:service-channel place)))
    (setf (place-now place) (* 1000000 1000000000)
          (place-meddler place) (lambda (when writes) (meddle affair when writes))
          (affair-etcd affair) (etcd:make-etcd nil :timeout 60 :channel channel)
          (affair-nodes affair) (loop repeat 2 collect (new-node affair))
          (affair-users affair) (loop for i below 2 collect (make-user :id (format nil "w~D" i)))
          (affair-crews affair) (loop repeat 2 collect (make-crew))
          (affair-watcher affair) (workflow::make-watcher
                                   :revision 2
                                   :function (lambda (change) (push change (affair-told affair)))))
    affair))

;;; Calls

(defun call-with-node (affair function &optional (node (some-node affair)))
  "What FUNCTION of NODE returns; nil if the store was not to be had; the condition that refuses
it."
  (let ((dead (shiftf (affair-dead affair) nil)))
    (incf (affair-depth affair))
    (unwind-protect
         (handler-case (workflow::with-store-errors (funcall function node))
           (store-unavailable () nil)
           (workflow-error (condition)
             (let ((cause (workflow-error-cause condition)))
               (if (eq 'workflow-error (type-of condition))
                   (progn (unless (eq :unavailable (clgrpc.status:rpc-error-status cause))
                            (complain affair "a call has failed: ~A" condition))
                          nil)
                   condition))))
      (decf (affair-depth affair))
      (when (plusp (hash-table-count (workflow::node-stuck node)))
        (complain affair "a workflow could not be changed"))
      (when (shiftf (affair-dead affair) dead) (replace-node affair node)))))

(defun call-node (affair stub request)
  "What STUB answers to REQUEST by a node; nil if no answer has come; the condition that refuses it.
Whoever calls may call again."
  (call-with-node affair (lambda (node) (workflow::ask stub node request 60))))

(defun send-out (affair stub request)
  "Call a node; what is sent may come again later."
  (when (luck affair 30)
    (push (cons stub (protobuf:copy-message request)) (affair-sent affair)))
  (call-node affair stub request))

(defun replace-node (affair node)
  "NODE is gone, though what it is in the middle of goes on, if somebody else ends it; another
comes."
  (push node (affair-gone affair))
  (setf (affair-nodes affair)
        (substitute-if (new-node affair) (lambda (entry) (eq node (car entry)))
                       (affair-nodes affair))))

(defmacro while-free ((place) &body body)
  "Evaluate BODY unless PLACE, which says that it is under way, is true."
  `(unless ,place
     (setf ,place t)
     (unwind-protect (progn ,@body) (setf ,place nil))))

;;; What users do

(defun branch (affair)
  "What a child does, as forms."
  (loop repeat (1+ (roll affair 2))
        collect (if (luck affair 20)
                    `(:wait ,(/ (1+ (roll affair 2000)) 1000))
                    `(:task ,(if (luck affair 50) "a" "b") :attempts 1000 :backoff 1/2
                                                           :max-backoff 4))))

(defun fork (affair)
  "A step that starts children, as a form."
  `(:children ,(loop repeat (1+ (roll affair 3))
                     collect (list (if (luck affair 15)
                                       `((:parallel ,(branch affair)))
                                       (branch affair))))
              :failures ,(if (luck affair 50) :report :fail) :abandon ,(luck affair 20)))

(defun case-steps (affair)
  (workflow::steps-of
   (loop repeat (1+ (roll affair 3))
         collect (case (roll affair 9)
                   ((7 8) (fork affair))
                   (0 `(:wait ,(/ (1+ (roll affair 4000)) 1000)))
                   (1 '(:signal "x"))
                   (2 '(:task "a" :attempts 1000 :attempt-timeout 3 :backoff 1/2 :max-backoff 4))
                   (3 '(:task "b" :attempts 1000 :input "own" :backoff 1/2 :max-backoff 4))
                   (t '(:task "a" :attempts 1000 :backoff 1/2 :max-backoff 4))))))

(defun start-again (affair user)
  (while-free ((user-busy user))
    (when (and (user-acknowledged user) (< (user-starts user) 3)
               (null (state-at affair (user-id user))))
      (setf (user-request user) nil))
    (unless (user-request user)
      (incf (user-starts user))
      (setf (user-acknowledged user) nil
            (user-request user) (pb:make-start-request :id (user-id user)
                                                       :steps (case-steps affair)
                                                       :input (string-octets "in"))))
    (unless (user-acknowledged user)
      (let ((reply (send-out affair #'methods:start (user-request user))))
        ;; one that was sent before may have come late, and be under way
        (when reply (setf (user-acknowledged user) t))))))

(defun signal-one (affair user)
  (while-free ((user-busy user))
    (when (or (null (user-signals user)) (luck affair 30))
      (let ((signal-id (format nil "~D" (roll affair 1000000000))))
        (setf (gethash (cons (user-id user) signal-id) (affair-signals affair)) :sent)
        (push (pb:make-signal-request :id (user-id user) :name "x" :signal-id signal-id)
              (user-signals user))))
    (let* ((request (one-of affair (user-signals user)))
           (reply (send-out affair #'methods:signal request)))
      (when (and (typep reply 'workflow-closed)
                 (member (format nil "~A/signal/~A" (user-id user)
                                 (pb:signal-request-signal-id request))
                         (keys-below affair "data/") :test #'string=))
        (complain affair "~A was given a signal and refuses it now" (user-id user)))
      (when reply
        (setf (user-signals user) (remove request (user-signals user)))
        (when (pb:signal-reply-p reply)
          (setf (gethash (cons (user-id user) (pb:signal-request-signal-id request))
                         (affair-signals affair))
                :acknowledged))))))

;;; What workers do

(defun open-for (affair crew)
  (while-free ((crew-busy crew))
    (unless (crew-session crew)
      (let ((reply (call-node affair #'methods:open-session
                              (pb:make-open-session-request :seconds 8))))
        (when (pb:open-session-reply-p reply)
          (setf (crew-session crew) (pb:open-session-reply-session reply)))))))

(defun receive-task (affair hand task)
  "HAND has got TASK, a Task or nil."
  (setf (hand-task hand) task)
  (when task
    (let ((key (cons (pb:task-id task) (pb:task-fence task))))
      (when (gethash key (affair-received affair)) (complain affair "~A is given twice" key))
      (setf (gethash key (affair-received affair)) t))
    (check-joined affair task)))

(defun idle-p (hand)
  (not (or (hand-task hand) (hand-busy hand))))

(defun claim-woken (affair session)
  "The tasks, a list, that a claim of SESSION gets which is woken for one that was ready a while
ago."
  (destructuring-bind (&optional kind shard time id)
      (let ((key (one-of affair (affair-ready affair))))
        (and key (uiop:split-string key :separator "/")))
    (declare (ignore shard time))
    (setf (affair-ready affair) (keys-below affair "index/ready/"))
    (and id
         (call-with-node affair (lambda (node)
                                  (workflow::claim-one-task node session '("a" "b") kind id))))))

(defun claim-some (affair session)
  "The tasks, a list, that SESSION claims by a call."
  (let ((reply (send-out affair #'methods:claim
                         (pb:make-claim-request :session session :kinds '("a" "b")
                                                :max-tasks (1+ (roll affair 2))))))
    (if (pb:claim-reply-p reply)
        (coerce (pb:claim-reply-tasks reply) 'list)
        reply)))

(defun claim-with (affair crew hand)
  (while-free ((hand-busy hand))
    (let ((session (crew-session crew)))
      (when (and session (null (hand-task hand)))
        (let ((reply (if (luck affair 40)
                         (claim-woken affair session)
                         (claim-some affair session))))
          (cond ((listp reply)
                 ;; what there is no hand for it forgets
                 (loop for task in reply
                       for idle = hand then (find-if #'idle-p (crew-hands crew))
                       while idle
                       do (receive-task affair idle task)))
                ((and (typep reply 'session-lost) (equal session (crew-session crew)))
                 (setf (crew-session crew) nil))))))))

(defun result-text (id fence)
  (format nil "~A by ~D" id fence))

(defun result-of (task)
  (string-octets (result-text (pb:task-id task) (pb:task-fence task))))

(defun new-report (affair crew task)
  "What becomes of TASK."
  (let ((request (pb:make-report-request :id (pb:task-id task) :fence (pb:task-fence task)
                                         :session (or (crew-session crew) "")
                                         :next-kinds (if (luck affair 70) '("a" "b") '())
                                         :next-of-any (luck affair 50))))
    (case (if (affair-quiet affair) 9 (roll affair 16))
      ((0 1) (setf (pb:report-request-failure request) (pb:make-failure :text "no")))
      (2 (setf (pb:report-request-give-back request) (pb:make-give-back)))
      ((3 4 5) (setf (pb:report-request-continue-as-new request)
                   (pb:make-continuation :input (string-octets "in")
                                         :steps (if (find #\. (pb:task-id task))
                                                    ;; nobody signals children
                                                    (workflow::steps-of (branch affair))
                                                    (case-steps affair)))))
      (t (setf (pb:report-request-result request) (result-of task))
         (when (and (not (affair-quiet affair)) (luck affair 8))
           (setf (pb:report-request-then request)
                 (workflow::steps-of '((:task "b" :attempts 1000 :backoff 1/2 :max-backoff 4)
                                       (:wait 1/10)))))))
    request))

(defun report-with (affair crew hand)
  "HAND reports what it has done, perhaps again."
  (while-free ((hand-busy hand))
    (when (hand-task hand)
      (let* ((task (hand-task hand))
             (request (or (hand-report hand)
                          (setf (hand-report hand) (new-report affair crew task))))
             (reply (send-out affair #'methods:report request)))
        (when reply
          (setf (hand-report hand) nil
                (hand-task hand) nil)
          (when (pb:report-reply-p reply)
            (when (member (pb:report-request-outcome-case request) '(:result :continue-as-new))
              (push (list* (pb:task-id task) (pb:task-fence task)
                           (pb:report-request-result request))
                    (affair-acknowledged affair)))
            (receive-task affair hand (pb:report-reply-next reply))))))))

(defun stream-of (affair crew)
  "Where CREW sends its next heartbeat: a node and a stream there, mostly the same as before."
  (destructuring-bind (&optional node . stream) (crew-heartbeats crew)
    (if (and node (find node (affair-nodes affair) :key #'car) (luck affair 80))
        (values node stream)
        (let ((node (some-node affair)) (stream (workflow::make-heartbeat-stream)))
          (setf (crew-heartbeats crew) (cons node stream))
          (values node stream)))))

(defun beat-of (affair crew)
  (while-free ((crew-busy crew))
    (when (crew-session crew)
      (multiple-value-bind (node stream) (stream-of affair crew)
        (let* ((session (crew-session crew))
               (held (loop for task in (mapcar #'hand-task (crew-hands crew))
                           when task
                             collect (pb:make-held :id (pb:task-id task)
                                                   :fence (pb:task-fence task))))
               (reply (call-with-node affair (lambda (node)
                                               (workflow::note-heartbeat node session held stream))
                                      node)))
          (when (and (typep reply 'session-lost) (equal session (crew-session crew)))
            (setf (crew-session crew) nil)))))))

(defun end-crew (affair crew)
  "A worker dies, or stops; another one comes."
  (let ((session (crew-session crew)))
    (setf (affair-crews affair) (substitute (make-crew) crew (affair-crews affair)))
    (when (and session (luck affair 40))
      (call-node affair #'methods:close-session
                 (pb:make-close-session-request :session session)))))

;;; What nodes do by themselves

(defun tick (affair)
  "The clock of a node looks around."
  (call-with-node affair (one-of affair '(workflow::handle-due workflow::handle-due
                                          workflow::handle-due
                                          workflow::sweep-sessions workflow::sweep-sessions
                                          ;; in place of the watch of the index
                                          workflow::note-sessions
                                          workflow::renew-due-leases workflow::release-silent))))

(defun call-in-store-time (affair function)
  "Call FUNCTION while the steady time of all nodes is that of the store of AFFAIR."
  (with-replaced (('workflow::steady-ms
                   (fn (_function) (floor (place-now (affair-place affair)) 1000000))))
    (funcall function)))

(defun set-a-clock (affair)
  (let ((entry (one-of affair (affair-nodes affair))))
    (setf (cdr entry) (- (roll affair 200) 100))))

;;; The watch of all workflows, whose calls are broken off

(defun state-changes (affair revision)
  "The changes of states at REVISION, as a watch of the store tells them."
  (let ((prefix (workflow::key (workflow::root-of "case") "state" "")))
    (remove-if-not (lambda (change)
                     (and (eq :put (etcd:change-kind change))
                          (eql 0 (search prefix (etcd:entry-key (etcd:change-entry change))))))
                   (changes-at (affair-place affair) revision))))

(defun watch-some (affair)
  (let ((watcher (affair-watcher affair)))
    (loop for revision from (workflow::watcher-revision watcher)
            to (revision-of (affair-place affair))
          do (dolist (message (workflow::messages-of (state-changes affair revision) revision))
               (when (and (not (affair-quiet affair)) (luck affair 10)) (return-from watch-some))
               (workflow::note-change watcher (protobuf:copy-message message))))))

;;; What is in the store

(defun state-at (affair id)
  (let ((item (item-at (affair-place affair) (workflow::state-key (workflow::root-of "case") id))))
    (and item (protobuf:parse-message 'pb:workflow-state (memory::item-value item)))))

(defun keys-below (affair prefix)
  "The keys of the store below PREFIX, without it, in order."
  (keys-in (affair-place affair) (workflow::key (workflow::root-of "case") prefix)))

(defun ids-stored (affair)
  (keys-below affair "state/"))

(defun end-errand-p (key)
  "True if KEY is an errand that the end of a workflow has brought."
  (let ((parts (uiop:split-string key :separator "/")))
    (and (= 6 (length parts))
         (string= "due" (second parts))
         (member (fifth parts) '("end" "cancel") :test #'string=))))

(defun check-keys (affair)
  "The keys besides states, histories, data, sessions and errands of ends are those that the states
have."
  (let ((there (loop for key in (keys-below affair "")
                     unless (or (some (lambda (prefix) (eql 0 (search prefix key)))
                                      '("state/" "steps/" "history/" "data/" "index/sessions/"))
                                (end-errand-p key))
                       collect key))
        (wanted (loop for id in (ids-stored affair)
                      append (workflow::state-keys "" (state-at affair id)))))
    (unless (equal there (sort wanted #'string<))
      (complain affair "keys ~S, wanted ~S" there wanted))))

;;; Anything

(defun do-something (affair)
  "Somebody does something."
  (incf (affair-actions affair))
  (let* ((user (one-of affair (affair-users affair)))
         (crew (one-of affair (affair-crews affair)))
         (hand (one-of affair (crew-hands crew))))
    (case (roll affair 30)
      ((0 1 2 20) (start-again affair user))
      (3 (signal-one affair user))
      ((4 5) (open-for affair crew))
      ((6 7 8 9 10) (claim-with affair crew hand))
      ((11 12 13 14 15 16) (report-with affair crew hand))
      ((17 18) (let ((again (one-of affair (affair-sent affair))))
                 (when again (call-node affair (car again) (cdr again)))))
      ((19 29) (beat-of affair crew))
      ((21 22 23) (tick affair))
      ((24 25) (incf (place-now (affair-place affair)) (* 1000000 (roll affair 1500))))
      (27 (case (roll affair 4)
            (0 (end-crew affair crew))
            (1 (set-a-clock affair))
            (2 (replace-node affair (some-node affair)))
            (3 (when (luck affair 30)
                 (call-node affair #'methods:cancel
                            (pb:make-cancel-request :id (user-id user)))))))
      ;; stalls: longer than a session lasts
      (28 (when (luck affair 30)
            (incf (place-now (affair-place affair)) (* 9000 1000000))))
      (t (watch-some affair)))))

;;; The end: all goes well, and all comes to its end

(defun stored-payload (affair state key)
  (or (workflow::small-payload state key)
      (let ((item (item-at (affair-place affair)
                           (workflow::data-key (workflow::root-of "case")
                                               (pb:workflow-state-id state) key))))
        (and item (memory::item-value item)))))

(defun note-results (affair state)
  "Keep what the tasks of STATE have made."
  (loop with id = (pb:workflow-state-id state)
        for step across (pb:workflow-state-steps state)
        for payload = (stored-payload affair state (pb:step-state-result-key step))
        do (when (and payload (eq :done (pb:step-state-status step))
                      (eq :task (pb:step-action-case (pb:step-state-step step))))
             (pushnew (list id (pb:step-state-number step) (octets-string payload))
                      (affair-results affair) :test #'equal))))

(defun note-finals (affair)
  (dolist (user (affair-users affair))
    (let ((state (state-at affair (user-id user))))
      (when (and state (not (workflow::running-p state)))
        (pushnew state (affair-finals affair) :test #'protobuf:message=)
        (note-results affair state)))))

(defun settled-p (affair)
  (and (every (lambda (user) (and (user-request user) (user-acknowledged user)))
              (affair-users affair))
       (notany (lambda (id) (workflow::running-p (state-at affair id))) (ids-stored affair))
       (notany #'end-errand-p (keys-below affair "index/due/"))
       (every (lambda (crew) (notany #'hand-task (crew-hands crew))) (affair-crews affair))))

(defun settle-affair (affair)
  (setf (affair-quiet affair) t)
  (dolist (entry (rest (affair-nodes affair))) (push (car entry) (affair-gone affair)))
  (setf (affair-nodes affair) (list (first (affair-nodes affair)))
        (cdr (first (affair-nodes affair))) 0
        (affair-crews affair) (list (first (affair-crews affair))))
  (let ((node (some-node affair)) (crew (first (affair-crews affair))))
    (loop for round below 1500
          until (or (settled-p affair) (affair-trouble affair))
          do (incf (place-now (affair-place affair)) (* 500 1000000))
             (workflow::handle-due node)
             (workflow::sweep-sessions node)
             (note-finals affair)
             (open-for affair crew)
             ;; slow, since the answers to renewals come on another thread
             (workflow::note-sessions node)
             (workflow::renew-due-leases node)
             (workflow::release-silent node)
             (when (zerop (mod round 5)) (beat-of affair crew))
             (dolist (user (affair-users affair))
               (setf (user-starts user) (max 3 (user-starts user)))
               (start-again affair user)
               (let ((state (state-at affair (user-id user))))
                 (when (and state (workflow::running-p state)
                            (eq :listening (pb:step-state-status (workflow::state-step state))))
                   (signal-one affair user))))
             (dolist (hand (crew-hands crew))
               (report-with affair crew hand)
               (claim-with affair crew hand))
             (check-keys affair))
    (unless (settled-p affair) (complain affair "something does not end"))
    (note-finals affair)
    (watch-some affair)
    ;; and is forgotten, children later than others
    (loop repeat 3
          do (incf (place-now (affair-place affair)) (* 1900 1000000000)) ; more is doubted
             (workflow::handle-due node))
    (end-of-leases (affair-place affair))
    (let ((left (keys-below affair "")))
      (when left (complain affair "~S is left in the store" left)))))

;;; What must hold

(defun ids-told (affair)
  (remove-duplicates (mapcar #'pb:change-id (affair-told affair)) :test #'string=))

(defun events-told (affair id)
  "What the watch was told of ID, in order: a list of (change . event)."
  (loop for change in (reverse (affair-told affair))
        when (string= id (pb:change-id change))
          append (loop for event across (pb:change-events change) collect (cons change event))))

(defun lives-told (affair id)
  "The changes of ID that the watch was told, a list of lists, one for each workflow of that id."
  (let ((lives '()))
    (dolist (change (reverse (affair-told affair)))
      (when (string= id (pb:change-id change))
        (if (= 1 (pb:change-number change))
            (push (list change) lives)
            (push change (first lives)))))
    (reverse (mapcar #'reverse lives))))

(defun check-numbers (affair id)
  (dolist (life (lives-told affair id))
    (loop for change in life
          for number from 1
          do (unless (= number (pb:change-number change))
               (complain affair "of ~A the change ~D is told as number ~D" id
                         (pb:change-number change) number)))
    (when (or (eq :running (pb:change-status (first (last life))))
              (/= 1 (count :running life :key #'pb:change-status :test-not #'eq)))
      (complain affair "a life of ~A does not end once" id))))

(defun check-fences (affair id events)
  "Claims have growing fences; what is done by a claim is done once, and what was acknowledged is."
  (let ((last 0) (done (make-hash-table)))
    (loop for (nil . event) in events
          for fence = (pb:event-fence event)
          do (case (pb:event-kind event)
               (:step-claimed
                (unless (< last fence) (complain affair "~A: fence ~D after ~D" id fence last))
                (setf last fence))
               (:step-done
                (when (plusp fence)
                  (when (gethash fence done)
                    (complain affair "~A: the claim ~D has done two steps" id fence))
                  (setf (gethash fence done) t)))))
    (loop for (other fence) in (affair-acknowledged affair)
          when (and (string= id other) (not (gethash fence done)))
            do (complain affair "~A: the result of ~D was acknowledged, and is not there" id
                         fence))))

(defun check-results (affair id events)
  "A step that is done has the result of the claim that has done it."
  (loop for (other number text) in (affair-results affair)
        when (and (string= id other)
                  (notany (lambda (pair)
                            (let ((event (cdr pair)))
                              (and (eq :step-done (pb:event-kind event))
                                   (= number (pb:event-step event))
                                   (string= text (result-text id (pb:event-fence event))))))
                          events))
          do (complain affair "~A: step ~D has the result ~S" id number text)))

(defun check-back-offs (affair id events)
  "An attempt that has failed is followed by the next after a pause, told once; one that was lost or
given back by the next at once, or after a pause."
  (let ((failed (make-hash-table)))
    (loop for (change . event) in events
          for step = (pb:event-step event)
          for time = (pb:change-unix-ms change)
          do (case (pb:event-kind event)
               (:started (clrhash failed))
               ((:attempt-failed :attempt-lost :attempt-given-back)
                (setf (gethash step failed) (list time (pb:event-attempt event)
                                                  (pb:event-kind event))))
               (:step-ready
                (let ((attempt (gethash step failed)))
                  (cond ((null attempt) (complain affair "~A: ready for no reason" id))
                        ((< (- time (first attempt))
                            (* 250 (if (eq :attempt-failed (third attempt))
                                       (min 8 (expt 2 (1- (second attempt))))
                                       1)))
                         (complain affair "~A: ready after ~D ms of the attempt ~D" id
                                   (- time (first attempt)) (second attempt))))
                  (remhash step failed)))
               (:step-claimed
                (when (eq :attempt-failed (third (gethash step failed)))
                  (complain affair "~A: claimed within a pause" id)))))))

(defun check-sessions (affair)
  "Whoever has claimed a task had a session when he did."
  (dolist (change (affair-told affair))
    (loop for event across (pb:change-events change)
          for key = (workflow::key (workflow::root-of "case") "index/sessions"
                                   (pb:event-worker event))
          when (and (eq :step-claimed (pb:event-kind event))
                    (null (memory::tree-item
                           (memory::tree-at (place-store (affair-place affair))
                                            (pb:change-revision change))
                           (string-octets key))))
            do (complain affair "~A: a claim without a session at ~D" (pb:change-id change)
                         (pb:change-revision change)))))

(defun check-final (affair state)
  "What holds of STATE, of a workflow that has ended."
  (let ((id (pb:workflow-state-id state)))
    (loop for step across (pb:workflow-state-steps state)
          for wait = (pb:step-wait-ms (pb:step-state-step step))
          do (when (and (eq :completed (pb:workflow-state-status state))
                        (not (eq :done (pb:step-state-status step))))
               (complain affair "~A has completed without its step ~D" id
                         (pb:step-state-number step)))
             (when (and (plusp wait) (eq :done (pb:step-state-status step))
                        (< (- (pb:step-state-ended-unix-ms step)
                              (pb:step-state-begun-unix-ms step))
                           wait))
               (complain affair "~A: a time comes early" id)))))

(defun check-steps (affair id)
  "In each life a step is done once at most, and there are no more signals than were given."
  (dolist (life (lives-told affair id))
    (let ((done '()) (signalled 0))
      (dolist (change life)
        (loop for event across (pb:change-events change)
              do (case (pb:event-kind event)
                   (:step-done
                    (when (member (pb:event-step event) done)
                      (complain affair "~A: step ~D is done twice" id (pb:event-step event)))
                    (push (pb:event-step event) done))
                   (:signalled (incf signalled)))))
      (let ((given (loop for key being the hash-keys of (affair-signals affair)
                         count (string= id (car key)))))
        (when (< given signalled)
          (complain affair "~A: ~D signals, given ~D" id signalled given)))))
  (let ((acknowledged (loop for key being the hash-keys of (affair-signals affair)
                              using (hash-value what)
                            count (and (string= id (car key)) (eq :acknowledged what))))
        (signalled (count :signalled (events-told affair id)
                          :key (lambda (pair) (pb:event-kind (cdr pair))))))
    (when (< signalled acknowledged)
      (complain affair "~A: ~D signals, acknowledged ~D" id signalled acknowledged))))

(defun check-affair (affair)
  (dolist (id (ids-told affair))
    (let ((events (events-told affair id)))
      (check-numbers affair id)
      (check-fences affair id events)
      (check-results affair id events)
      (check-back-offs affair id events)
      (check-steps affair id)
      (check-family affair id)))
  (check-sessions affair)
  (dolist (state (affair-finals affair)) (check-final affair state)))

(defun end-affair (affair)
  (mapc #'close-workflow-service (append (affair-gone affair)
                                         (mapcar #'car (affair-nodes affair))))
  (etcd:close-etcd (affair-etcd affair)))

(defun run-affair (seed &key (actions 100))
  "Run a case. Return what did not hold, or nil, and the case."
  (let ((affair (new-affair seed)))
    (unwind-protect
         (call-in-store-time
          affair
          (lambda ()
            (loop while (and (< (affair-actions affair) actions) (null (affair-trouble affair)))
                  do (do-something affair)
                     (setf (affair-dead affair) nil)
                     (note-finals affair)
                     (check-keys affair))
            (unless (affair-trouble affair) (settle-affair affair))
            (unless (affair-trouble affair) (check-affair affair))
            (values (affair-trouble affair) affair)))
      (end-affair affair))))

(defun number-of-environment (name default)
  (let ((text (uiop:getenvp name))) (if text (parse-integer text) default)))

(test (interleavings :suite :clgrpc.workflow.seeds)
  "Whatever nodes, workers, users and clocks do in whatever order, and wherever in it they die: what
is acknowledged is there once, nothing is given or done twice or comes early, a watch is told all of
it in order, each child is begun once and its end told once, all comes to its end, and nothing is
left in the store. CLGRPC_SEED repeats a case, CLGRPC_CASES says how many there are, by default 100,
and 400 in make endurance."
  (let ((first (number-of-environment "CLGRPC_SEED" (random 1000000000 (make-random-state t))))
        (count (number-of-environment "CLGRPC_CASES" (support:at-length 100 400)))
        (acknowledged 0) (received 0) (results 0) (lives 0) (joined 0) (continued 0))
    (loop for seed from first below (+ first count)
          do (multiple-value-bind (trouble affair) (run-affair seed)
               (when trouble
                 (fail "CLGRPC_SEED=~D: ~A" seed trouble)
                 (return))
               (incf acknowledged (length (affair-acknowledged affair)))
               (incf received (hash-table-count (affair-received affair)))
               (incf results (length (affair-results affair)))
               (incf joined (count-told affair :child-ended))
               (incf continued (count-told affair :continued))
               (dolist (user (affair-users affair))
                 (incf lives (length (lives-told affair (user-id user)))))))
    ;; the cases do something
    (when (<= 100 count)
      (is (< (* 2 count) acknowledged) "~D results in ~D cases" acknowledged count)
      (is (< (* 5/2 count) received) "~D tasks were given" received)
      (is (< count results) "~D results were looked at" results)
      (is (< count joined) "~D children have ended" joined)
      (is (< (/ count 40) continued) "~D workflows were begun again" continued)
      (is (< (* 2 count) lives) "~D workflows" lives))))

(test cases-are-repeated-by-their-seeds
  (flet ((told (seed)
           (mapcar #'protobuf:serialize (affair-told (nth-value 1 (run-affair seed))))))
    (loop for seed from 1 to 3
          do (is (equalp (told seed) (told seed))))))

(test signals-that-come-twice-at-once
  "The same signal comes again while it is being given, and the workflow ends by it: both are
answered alike."
  (let ((affair (new-affair 1)))
    (setf (affair-quiet affair) t)
    (unwind-protect
         (let ((request (pb:make-signal-request :id "w" :name "x" :signal-id "1"))
               (again nil) (place (affair-place affair)))
           (start-workflow (some-node affair) "w" '((:signal "x")))
           (setf (place-meddler place)
                 (fn (when _writes)
                   ;; behind its look whether it was there
                   (when (and (eq :after when) (null again))
                     (setf again t
                           again (call-node affair #'methods:signal request)))))
           (is (pb:signal-reply-p (call-node affair #'methods:signal request)))
           (is (pb:signal-reply-p again))
           (is (eq :completed (pb:workflow-state-status (state-at affair "w"))))
           (is (= 2 (pb:workflow-state-version (state-at affair "w")))))
      (end-affair affair))))
