;;;; Peers that send anything: parts of snapshots that are broken, too long, out of order or by
;;;; several streams at once, streams that end in the middle; a state machine that is slow or fails.
;;;; Whatever comes, the state machine is asked by one thread at a time, for chunks that follow each
;;;; other, and installs nothing but what has the check sum of its header.

(in-package #:clgrpc.tests.raft)

(defclass wary (member)
  ((inside :initform 0 :accessor wary-inside) ; threads in the methods for snapshots
   (kept :initform nil :accessor wary-kept) ; octets of the snapshot under way, a list; or nil
   (header :initform nil :accessor wary-header) ; of that
   (faults :initform '() :accessor wary-faults) ; what must never be, as texts
   (chance :initarg :chance :reader wary-chance) ; says when to fail
   (lock :initform (sb-thread:make-mutex :name "wary") :reader wary-lock))
  (:documentation "A member that checks how it is called."))

(defun call-warily (member function)
  "Call FUNCTION, a method of MEMBER; note whether another one runs."
  (flet ((count-inside (change)
           (sb-thread:with-mutex ((wary-lock member))
             (incf (wary-inside member) change))))
    (unless (= 1 (count-inside 1)) (push "two at once" (wary-faults member)))
    (unwind-protect (progn (sb-thread:thread-yield)
                           (when (zerop (funcall (wary-chance member) 12))
                             (error "This is a bug."))
                           (funcall function))
      (count-inside -1))))

(defun same-snapshot-p (one other)
  (equal (clgrpc.raft::snapshot-identity one) (clgrpc.raft::snapshot-identity other)))

(defun all-octets (lists)
  (apply #'concatenate 'octets lists))

(defmethod raft:handle-install-snapshot ((member wary) header offset \&key)
  (call-warily
   member
   (lambda ()
     (let ((refuse (zerop (funcall (wary-chance member) 6))))
       (cond (refuse)
             ((zerop offset) (setf (wary-kept member) '()
                                   (wary-header member) header))
             ((not (and (wary-header member) (same-snapshot-p header (wary-header member))
                        (= offset (length (all-octets (wary-kept member))))))
              (push "goes on where nothing is" (wary-faults member))))
       (v1:make-install-snapshot-response
        :term (if refuse (1+ (v1:snapshot-header-term header)) 1))))))

(defmethod raft:handle-snapshot-chunk ((member wary) header offset data \&key)
  (call-warily
   member
   (lambda ()
     (unless (and (wary-header member) (same-snapshot-p header (wary-header member))
                  (= offset (length (all-octets (wary-kept member)))))
       (push "a chunk out of order" (wary-faults member)))
     (setf (wary-kept member) (append (wary-kept member) (list data))))))

(defmethod raft:handle-snapshot-end ((member wary) header \&key)
  (call-warily
   member
   (lambda ()
     (let ((octets (all-octets (wary-kept member))))
       (unless (and (= (length octets) (v1:snapshot-header-octets header))
                    (= (raft:crc32c octets) (v1:snapshot-header-crc32c header)))
         (push "something else is installed" (wary-faults member))))
     (incf (member-installed member))
     (setf (wary-header member) nil)
     (v1:make-install-snapshot-response :term 1))))

(defun random-part (chance)
  "A part of a snapshot that may be wrong in any way, as the arguments of a request."
  (flet ((draw (&rest choices) (nth (funcall chance (length choices)) choices)))
    (let* ((length (draw 20 20 20 21 5))
           (data (some-octets length))
           (start (draw 0 0 10 10 3 20))
           (end (max start (draw 10 20 length))))
      (case (funcall chance 8)
        (0 '())
        ((1 2) (list :header (header 20 :octets (draw length 20 0 (expt 2 63))
                                        :crc32c (draw (raft:crc32c data) (raft:crc32c data) 1))))
        (3 (list :chunk (chunk (draw 0 (1- (expt 2 64))) (make-octets (draw 0 1 100)))))
        (t (list :chunk (chunk start (subseq data (min start length) (min end length)))))))))

(defun good-parts ()
  (let ((data (some-octets 20)))
    (list (list :header (header 20 :octets 20 :crc32c (raft:crc32c data)))
          (list :chunk (chunk 0 (subseq data 0 10)))
          (list :chunk (chunk 10 (subseq data 10))))))

(defun send-anything (channel chance)
  "Send parts on a stream, good ones and others, and perhaps leave it there; end it at last."
  (handler-case
      (grpc:with-call (call (methods:install-snapshot channel :open :timeout 20))
        (dolist (part (good-parts))
          (when (zerop (funcall chance 4)) (setf part (random-part chance)))
          (when (zerop (funcall chance 12)) (return-from send-anything :left))
          (unless (grpc:send call (apply #'v1:make-install-snapshot-request part)) (return)))
        (unless (zerop (funcall chance 3)) (grpc:close-send call))
        (loop for response = (grpc:receive call)
              while response
              until (v1:install-snapshot-response-installed response)
              finally (return (and response :installed))))
    (grpc:rpc-error (error) (grpc:rpc-error-status error))))

(defun seeded-chance (seed)
  "A function that returns a number below its argument, of a sequence that SEED begins."
  (let ((state (sb-ext:seed-random-state seed))
        (lock (sb-thread:make-mutex)))
    (lambda (below) (sb-thread:with-mutex (lock) (random below state)))))

(defmacro without-log (&body body)
  "Evaluate BODY, in which errors of handlers are nothing to be told of."
  `(with-changed (((sb-ext:symbol-global-value 'grpc:*log-function*) nil)) ,@body))

(test snapshots-of-anybody
  "Six streams at once of parts at random, to a member that fails now and then."
  (let* ((seed (random 1000000))
         (member (make-instance 'wary :chance (seeded-chance seed)))
         (server (grpc:start-server (member-service member :chunk-seconds 0.2)
                                    :listen "127.0.0.1:0"))
         (outcomes '()) (lock (sb-thread:make-mutex)))
    (grpc:with-channel (channel (grpc:server-address server))
      (without-log
        (mapc #'sb-thread:join-thread
              (loop for i below 6
                    collect (let ((chance (seeded-chance (+ seed i))))
                              (in-thread (loop repeat 60
                                               do (let ((outcome (send-anything channel chance)))
                                                    (sb-thread:with-mutex (lock)
                                                      (push outcome outcomes)))))))))
      (is (equal '() (wary-faults member)) "seed ~D" seed)
      (is (plusp (member-installed member)) "seed ~D" seed)
      (is (equal '() (set-difference outcomes
                                     '(nil :installed :left :aborted :invalid-argument :internal
                                       :data-loss :failed-precondition :resource-exhausted)))
          "seed ~D" seed)
      (is (= 0 (wary-inside member))))
    (grpc:stop-server server :drain 0)))

(defun stormy-entries (simulation)
  "A leader gives entries to a member that takes any time to answer, on a network that cuts; its
process is killed now and then. What was acknowledged is there, nothing comes twice or in disorder."
  (let* ((chance (sim:make-chance (sim:simulation-seed simulation)))
         (member (make-instance 'member))
         (host (add-member member))
         (home (sim:add-host "a" (constantly '())))
         (peer (sim:on-host (home) (raft:make-peer "B" "b:7000" :group "G" :sender "A" :timeout 1
                                                       :window 3
                                                                :max-entries 20)))
         (lock (sb-thread:make-mutex)) (inside 0))
    (setf (member-delay member)
          (fn (_request)
            (sim:wait-for (/ (sim:between chance 0 (if (sim:chance-p chance 5) 30 3)) 10))
            ;; a stream that was given up may still have a request here when the next one begins
            (sb-thread:with-mutex (lock) (incf inside))))
    (sim:at (sim:between chance 1 5) (lambda () (sim:cut home host)))
    (sim:at (sim:between chance 3 9) (lambda () (sim:restart-host host :down 1)))
    (unwind-protect
         (loop with next = 0
               repeat 300
               while (< next 60)
               do (let ((told (give-entries peer (min 30 (- 60 next)) :previous next :wait 0)))
                    (raft:flush-pipeline peer :timeout 60)
                    (loop for ((index . outcome) . more) on (funcall told)
                          do (when (and more (/= (1+ index) (car (first more))))
                               (error "The order is ~S." (funcall told)))
                             (when (and (integerp outcome) (> outcome (member-last-index member)))
                               (error "Entry ~D was acknowledged and is not there." outcome)))
                    (sim:wait-for (/ (sim:between chance 0 20) 10))
                    (setf next (member-last-index member)))
               finally (unless (equal (up-to 60) (reverse (member-indices member)))
                         (error "~S came." (reverse (member-indices member)))))
      (raft:close-peer peer))))

(test entries-in-a-storm
  (is (= 40 (sim:run-seeds #'stormy-entries :count 40 :latency '(1/1000 1/20)))))

(test thousands-of-entries
  "One by one, put together as far as may be: a request of all of them has no arguments."
  (let ((member (make-instance 'member)) (count 30000) (answered 0))
    (with-member (peer member :batch-entries 1000000 :max-entries 1000000 :window 1 :timeout 60)
      (dotimes (i count)
        (raft:pipeline-entries peer (request i 1 :octets 4)
                               (fn (response _error)
                                 (when (and response
                                            (v1:append-entries-response-success response))
                                   (incf answered)))))
      (is-true (raft:flush-pipeline peer))
      (is (= count answered (member-last-index member) (length (member-indices member)))))))
