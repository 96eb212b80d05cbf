;;;; Many workers, workflows and watchers at the nodes of a cluster, for the part scale. They are
;;;; calls of this process: a worker is a session that is kept and a claim that waits, as
;;;; START-WORKER has them; a watcher is a call that waits for changes of one workflow. Loaded after
;;;; scripts/load.lisp by bench/parts/scale.py. Prints "ready" and then answers each line of
;;;; standard input, a JSON object, with one: by its `do`
;;;;
;;;; - `reach` takes the nodes' `addresses`;
;;;; - `workflows`, `workers` and `watchers` begin `count` of these, and return the seconds that it
;;;;   took;
;;;; - `told` gives `count` workflows that are watched the signal that they wait for, one after the
;;;;   other, and returns the p50 and p99, in ms, of the watcher's wait after that;
;;;; - `failures` returns how many calls have failed so far.

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc-tools")
(load-strictly "clgrpc-cluster/workflow")

(defpackage #:clgrpc.bench.scale
  (:use #:cl)
  (:local-nicknames (#:grpc #:clgrpc) (#:base #:clgrpc.base) (#:load #:clgrpc.load)
                    (#:v1 #:clgrpc.workflow.v1) (#:methods #:clgrpc.workflow.v1.workflow)
                    (#:workflow #:clgrpc.workflow)))

(in-package #:clgrpc.bench.scale)

(defconstant +calls-per-channel+ 400
  "A connection has 1,000 calls under way at most; a worker has two, and a few calls are short.")
(defconstant +session-seconds+ 10)
(defconstant +claim-ms+ 20000 "How long a claim waits, as those of our workers do.")

(defvar *addresses* '())
(defvar *channels* '() "All channels of waiting calls, with the number of calls of each.")
(sb-ext:defglobal **failures** 0)
(declaim (type fixnum **failures**))
(defvar *ended* (make-hash-table :test 'equal :synchronized t)
  "From ids of watched workflows to the times at which their end was reported.")

(defun note-failure () (sb-ext:atomic-incf **failures**))

(defun waiting-channel (i)
  "The channel for the waiting call number I, at the nodes in turn."
  (let ((place (floor i +calls-per-channel+)))
    (loop while (<= (length *channels*) place)
          do (let ((address (elt *addresses* (mod (length *channels*) (length *addresses*)))))
               (setf *channels*
                     (append *channels*
                             (list (grpc:make-channel address :share-connections nil))))))
    (elt *channels* place)))

(defun in-threads (count threads function)
  "Call FUNCTION with each number below COUNT, on THREADS. Return the seconds that this took."
  (let ((next -1) (lock (sb-thread:make-mutex)) (begin (base:monotonic-ns)))
    (mapc #'sb-thread:join-thread
          (loop repeat threads
                collect (sb-thread:make-thread
                         (lambda ()
                           (loop for i = (sb-thread:with-mutex (lock) (incf next))
                                 while (< i count)
                                 do (handler-case (funcall function i)
                                      (error () (note-failure))))))))
    (base:ns-seconds (- (base:monotonic-ns) begin))))

(defun id-of (i) (format nil "w~6,'0D" i))

(defun start-workflows (count)
  (let ((channels (mapcar #'grpc:make-channel *addresses*)))
    (in-threads count 24
                (lambda (i)
                  (workflow:start-workflow (elt channels (mod i (length channels))) (id-of i)
                                           '((:signal "go")) :input "x" :call-timeout 60)))))

(defun claim-again (channel session)
  "Let a claim of SESSION wait, again and again, on a thread."
  (let ((request (v1:make-claim-request :session session :kinds '("none") :wait-ms +claim-ms+)))
    (sb-thread:make-thread (lambda ()
                             (loop (handler-case (methods:claim channel request :timeout 60)
                                     (error () (note-failure) (sleep 1))))))))

(defun open-heartbeats (channel)
  "A stream of heartbeats on CHANNEL; answers are dropped."
  (let ((call (methods:heartbeats channel :open)))
    (grpc:on-message call (lambda (reply) (declare (ignore reply))))
    (grpc:on-end call #'note-failure)
    call))

(defun keep-sessions (sessions)
  "Send heartbeats of SESSIONS, conses of a channel and a name, three in the time of a session, each
on a stream of its own, as our workers do."
  (loop with count = (length sessions) with begin = (base:monotonic-ns)
        with streams = (map 'vector (lambda (session) (open-heartbeats (car session))) sessions)
        for beat from 0
        for place = (mod beat count)
        do (let ((due (+ begin (base:seconds-ns (* beat (/ +session-seconds+ 3 count))))))
             (sleep (max 0 (base:ns-seconds (- due (base:monotonic-ns)))))
             (handler-case (grpc:try-send (elt streams place)
                                          (v1:make-heartbeat-request
                                           :session (cdr (elt sessions place))))
               (error () (note-failure))))))

(defun start-workers (count)
  (let ((sessions (make-array count)))
    (prog1 (in-threads count 8
                       (lambda (i)
                         (let ((channel (waiting-channel i)))
                           (setf (svref sessions i)
                                 (cons channel
                                       (v1:open-session-reply-session
                                        (methods:open-session
                                         channel (v1:make-open-session-request
                                                  :worker "idle" :seconds +session-seconds+)
                                         :timeout 30)))))))
      (loop for (channel . session) across sessions do (claim-again channel session))
      (loop with groups = 4
            for group below groups
            do (sb-thread:make-thread
                #'keep-sessions
                :arguments (list (coerce (loop for i from group below count by groups
                                               collect (svref sessions i))
                                         'vector)))))))

(defun start-watchers (count)
  (in-threads count 8
              (lambda (i)
                (let* ((id (id-of i))
                       (call (methods:watch (waiting-channel (+ 1000 i))
                                            (v1:make-watch-request :id id))))
                  (grpc:on-message call
                                   (lambda (change)
                                     (unless (eq :running (v1:change-status change))
                                       (setf (gethash id *ended*) (base:monotonic-ns)))))
                  (grpc:on-end call (lambda ()
                                      (unless (gethash id *ended*) (note-failure))))))))

(defun tell (count)
  "Signal COUNT workflows that are watched; return the quantiles of the time until the watcher gets
the end."
  (let ((latencies (load:make-histogram)) (channel (grpc:make-channel (first *addresses*))))
    (loop for i below count
          for id = (id-of i)
          for begin = (base:monotonic-ns)
          do (workflow:signal-workflow channel id "go" "x" :signal-id "s")
             (loop until (gethash id *ended*) do (sleep 0.001))
             (load:record-value latencies (- (gethash id *ended*) begin)))
    (flet ((quantile (share) (/ (load:histogram-quantile latencies share) 1d6)))
      `(("p50" . ,(quantile 1/2)) ("p99" . ,(quantile 99/100))))))

(defun answer (request)
  (flet ((field (name) (cdr (assoc name request :test #'string=))))
    (let ((what (field "do")) (count (field "count")))
      (flet ((is (name) (string= name what))
             (seconds (seconds) `(("seconds" . ,(float seconds 1d0)))))
        (cond ((is "reach") (setf *addresses* (coerce (field "addresses") 'list)) (seconds 0))
              ((is "workflows") (seconds (start-workflows count)))
              ((is "workers") (seconds (start-workers count)))
              ((is "watchers") (seconds (start-watchers count)))
              ((is "told") (tell count))
              (t `(("failures" . ,**failures**))))))))

(defun main ()
  (clgrpc:tune-collector)
  (format t "ready~%")
  (finish-output)
  (loop for line = (read-line *standard-input* nil)
        while line
        do (format t "~A~%" (base:write-json (answer (base:parse-json line))))
           (finish-output)))

(main)
(clgrpc.scripts:quit 0)
