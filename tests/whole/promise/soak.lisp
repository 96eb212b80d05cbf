;;;; The soak: everything at once for a while, against three servers that live all the time, one for
;;;; each place where handlers run: calls of all kinds, blocking and not, long messages,
;;;; cancellations, deadlines, handlers that block, fail and call their own server, clients that
;;;; come, call and vanish, services and messages that are redefined.
;;;;
;;;; The time is cut into shifts. After each everybody rests: all calls must have ended, each with a
;;;; status that its activity allows, and memory, threads and descriptors are looked at with nothing
;;;; under way, so that what is still there has been kept, not caught in passing. The first shift
;;;; warms up; what grows afterwards, and over the second half of that as well, has leaked.

(in-package #:clgrpc.tests.promise)
(in-suite :clgrpc.promise.memory)

(defparameter *shift-seconds* '(8 120)
  "How long a shift may be.")
(defparameter *leak-octets* (* 8 1024 1024)
  "How much more memory in use is no leak: what a conservative collector may mistake for used.")
(defparameter *leak-resident-octets* (* 12 1024 1024)
  "How much more resident memory is no leak: the collector gives it back when it likes.")

(defstruct (soak (:copier nil))
  "COUNTS maps (activity . status) to how many calls ended so; PROBLEMS are texts, newest first."
  servers channels shop seed             ; a channel for each server
  (stop nil)
  (lock (sb-thread:make-mutex :name "soak"))
  (counts (make-hash-table :test 'equal))
  (problems '()))

(defun note-problem (soak control &rest arguments)
  (sb-thread:with-mutex ((soak-lock soak))
    (when (< (length (soak-problems soak)) 20)
      (push (format nil "~?" control arguments) (soak-problems soak)))))

;;; What the server does

(defun soak-channel (soak random)
  "One of the channels that live as long as the soak."
  (aref (soak-channels soak) (random (length (soak-channels soak)) random)))

(defun soak-address (soak random)
  "Where one of the servers listens."
  (grpc:server-address (elt (soak-servers soak) (random (length (soak-servers soak)) random))))

(defun answer-as-told (channel note call)
  "Do what the text of NOTE says, and return what a handler of ASK is to return. CHANNEL is one to
its own server."
  (let ((told (lab:note-text note)))
    (flet ((told-p (text) (string= text told)))
      (cond ((told-p "") note)
            ((told-p "sleep") (sleep (/ (number-of note) 1000)) note)
            ((told-p "later") (grpc:after call 0.002 (lambda () (grpc:reply call note))) call)
            ((told-p "fail") (grpc:fail :aborted "as told"))
            ((told-p "break") (error "as told"))
            ((told-p "call yourself")
             (ask-and-pass-on channel (note (number-of note)) :timeout 60))
            (t (error "told ~S" told))))))

(defun chat-either-way (stream call)
  "Echo, now in the blocking and now in the reactive style."
  (cond ((zerop (random 2))
         (grpc:on-message stream (lambda (note) (grpc:send call note)))
         (grpc:on-half-close stream (lambda () (grpc:finish call)))
         call)
        (t (grpc:do-messages (note stream) (grpc:send call note)))))

(defun soak-handlers (soak place)
  "The handlers of the server at PLACE of SOAK's."
  (list :ask (lambda (note call) (answer-as-told (aref (soak-channels soak) place) note call))
        :watch (lambda (note call)
                 (dotimes (i (number-of note))
                   (grpc:send call (note i :body (lab:note-body note)))))
        :collect (handling (stream)
                   (note (reduce #'+ (numbers stream))))
        :chat #'chat-either-way))

;;; What the clients do

(defparameter *activities* '()
  "A list of (name threads statuses function), the function of a soak and a random state.")

(defmacro define-activity (name (threads &rest statuses) (soak random) &body body)
  "Define what THREADS threads do again and again. BODY makes calls and returns how they ended, a
status or a list of such, which must be among STATUSES."
  `(setf *activities*
         (append (remove ',name *activities* :key #'first)
                 (list (list ',name ,threads ',statuses
                             (lambda (,soak ,random)
                               (declare (ignorable ,random))
                               ,@body))))))

(defvar *last-error* nil "The RPC-ERROR by which the last of this thread's calls ended that did.")

(defun ending (function)
  "How the call ends that FUNCTION makes, which returns whether the answer was right."
  (handler-case (if (funcall function) :ok :wrong-answer)
    (status:rpc-error (error)
      (setf *last-error* error)
      (status:rpc-error-status error))))

(defmacro ending-of (&body body)
  `(ending (lambda () ,@body)))

(defun asking (channel told random &rest options)
  "How a unary call that tells the server what to do ends."
  (let ((number (random 30 random)))
    (ending-of (= number (number-of (apply #'ask channel (note number :text told) options))))))

(define-activity ask (3 :ok) (soak random)
  (asking (soak-channel soak random) "" random))

(define-activity ask-ahead (2 :ok) (soak random)
  (let* ((channel (soak-channel soak random))
         (futures (loop for i below 50
                        collect (grpc:call-async #'lab.bench:ask channel (note i) :timeout 60))))
    (loop for future in futures
          for i from 0
          collect (ending-of (= i (number-of (grpc:await future)))))))

(define-activity ask-later (1 :ok) (soak random)
  (asking (soak-channel soak random) "later" random))

(define-activity ask-who-blocks (2 :ok) (soak random)
  (asking (soak-channel soak random) "sleep" random :timeout 60))

(define-activity ask-who-fails (1 :aborted) (soak random)
  (asking (soak-channel soak random) "fail" random))

(define-activity ask-who-breaks (1 :internal) (soak random)
  (asking (soak-channel soak random) "break" random))

(define-activity ask-who-calls-itself (2 :ok :resource-exhausted) (soak random)
  (asking (soak-channel soak random) "call yourself" random :timeout 60))

;; on a machine that is busy with others the answer may be there before the timer is looked at
(define-activity hurry (1 :deadline-exceeded :ok) (soak random)
  (ending-of (ask (soak-channel soak random) (note 100 :text "sleep")
                  :timeout (/ (1+ (random 10 random)) 1000))))

(define-activity watch (1 :ok) (soak random)
  (let ((count (random 40 random)) (seen 0))
    (ending-of (grpc:do-messages (note (watch (soak-channel soak random)
                                              (note count :body (random 2000 random))
                                              :timeout 60)
                                       (= seen count))
                 (unless (= seen (number-of note)) (return nil))
                 (incf seen)))))

(define-activity collect (1 :ok) (soak random)
  (let ((numbers (loop repeat (random 40 random) collect (random 1000 random))))
    (ending-of (= (reduce #'+ numbers)
                  (number-of (collect (soak-channel soak random) (mapcar #'note numbers)
                                      :timeout 60))))))

(define-activity chat (1 :ok) (soak random)
  (let ((count (random 40 random)))
    (ending-of (let ((call (chat (soak-channel soak random) :open :timeout 60)))
                 (and (loop for i below count
                            always (grpc:send call (note i))
                            always (= i (number-of (grpc:receive call))))
                      (progn (grpc:close-send call)
                             (null (grpc:receive call))))))))

(define-activity carry (1 :ok) (soak random)
  (let ((size (random 3000000 random)) (channel (soak-channel soak random)))
    (flet ((whole-p (note) (= size (length (lab:note-body note)))))
      (list (ending-of (whole-p (ask channel (note 1 :body size) :timeout 60)))
            (ending-of (let ((notes (make-list 3 :initial-element (note 1 :body size))) (count 0))
                         (grpc:do-messages (note (chat channel notes :timeout 60) (= 3 count))
                           (unless (whole-p note) (return nil))
                           (incf count))))))))

(define-activity press (1 :ok) (soak random)
  (let ((size (random 300000 random)) (channel (soak-channel soak random)))
    (ending-of (= size (length (lab:note-body (ask channel (note 1 :body size)
                                                   :timeout 60
                                                   :compression (if (zerop (random 2 random))
                                                                    :gzip
                                                                    :deflate))))))))

(define-activity cancel (1 :cancelled) (soak random)
  (let ((call (chat (soak-channel soak random) :open :timeout 60)))
    (grpc:send call (note 1 :body (random 20000 random)))
    (when (zerop (random 2 random)) (grpc:receive call))
    (grpc:cancel call)
    (ending-of (loop while (grpc:receive call)))))

(define-activity come-and-go (1 :ok :cancelled) (soak random)
  (let ((futures '()))
    (grpc:with-channel (channel (soak-address soak random))
      (push (grpc:call-async #'lab.bench:ask channel (note 7) :timeout 60) futures)
      (when (zerop (random 2 random)) (grpc:await (first futures)))
      (dotimes (i 3)
        (push (grpc:call-async #'lab.bench:ask channel (note 7 :text "sleep") :timeout 60)
              futures)))
    (loop for future in futures
          collect (ending-of (= 7 (number-of (grpc:await future)))))))

(define-activity vanish (1 :vanished) (soak random)
  (with-raw-client (peer (soak-address soak random))
    (let ((exchange (send-request peer "/lab.Bench/Chat"
                                  :end nil :data (note-octets 1 :body (random 5000 random)))))
      (when (zerop (random 2 random))
        (send-request peer "/lab.Bench/Ask" :data (note-octets 20 :text "sleep")))
      (when (zerop (random 2 random))
        (await-peer peer (lambda () (plusp (length (exchange-data-octets exchange))))))
      :vanished)))

(define-activity buy (1 :ok) (soak random)
  (ending-of (integerp (item-number (sell (soak-shop soak))))))

(let ((number 0))
  (define-activity define-anew (1 :ok) (soak random)
    (incf number)
    (prog1 (ending-of
             (ecase (mod number 3)
               (0 (define-seller number)
                (= number (item-number (sell (soak-shop soak)))))
               ;; three definitions in turn: those that are gone must be
               (1 (define-shop :fields (format nil "string s~D = 2;" (mod number 9))))
               (2 (define-shop :methods (format nil "rpc Lend~D(Item) returns (Item);"
                                                (mod number 9))))))
      (pass-time 0.2))))

;;; Shifts

(defun count-ending (soak name statuses status)
  (sb-thread:with-mutex ((soak-lock soak))
    (incf (gethash (cons name status) (soak-counts soak) 0)))
  (unless (member status statuses)
    (note-problem soak "A call of ~(~A ended with ~A~). The last error was ~A." name status
                  *last-error*)))

(defun act (soak name statuses function seed)
  "What a thread of the activity NAME does during a shift."
  (let ((random (sb-ext:seed-random-state seed))
        (*last-error* nil))
    (loop until (soak-stop soak)
          do (handler-case (let ((endings (funcall function soak random)))
                             (dolist (status (if (listp endings) endings (list endings)))
                               (count-ending soak name statuses status)))
               (error (error) (note-problem soak "~(~A~): ~A" name error))))))

(defun calls-so-far (soak)
  (sb-thread:with-mutex ((soak-lock soak))
    (loop for count being the hash-values of (soak-counts soak) sum count)))

(defun work-for (soak seconds seed progress)
  "Have everybody work for SECONDS, and wait until all have stopped."
  (setf (soak-stop soak) nil)
  (let ((threads (loop for (name count statuses function) in *activities*
                       append (loop repeat count
                                    collect (sb-thread:make-thread
                                             #'act :name (format nil "soak ~(~A~)" name)
                                                   :arguments (list soak name statuses function
                                                                    (incf seed)))))))
    (unwind-protect (loop with end = (+ (monotonic-ns) (seconds-ns seconds))
                          while (< (monotonic-ns) end)
                          do (pass-time (min 1 (max 0 (ns-seconds (- end (monotonic-ns))))))
                             (funcall progress))
      (setf (soak-stop soak) t))
    (dolist (thread threads)
      (when (eq :hangs (sb-thread:join-thread thread :timeout 90 :default :hangs))
        (note-problem soak "~A does not come to its end." (sb-thread:thread-name thread))))))

;;; Rests

(defun resident-octets ()
  (with-open-file (stream "/proc/self/statm")
    (read stream)                       ; the size of the address space
    (* 4096 (read stream))))

(defun thread-count () (length (sb-thread:list-all-threads)))

(defun collect-garbage ()
  (clgrpc.base::clear-store)                         ; what is kept for use again comes and goes
  (loop repeat 2 do (sb-ext:gc :full t)))

(defun rest-figures (soak connections)
  "What is there when nothing is under way, a plist. The servers are to have so many CONNECTIONS."
  (flet ((open-connections ()
           (loop for server in (soak-servers soak)
                 sum (getf (grpc:server-statistics server) :connections))))
    (unless (wait-until (lambda () (pass-time 0.01) (= connections (open-connections))))
      (note-problem soak "~D connections are open instead of ~D." (open-connections) connections)))
  (collect-garbage)
  (list :calls (calls-so-far soak) :used (sb-kernel:dynamic-usage) :resident (resident-octets)
        :threads (thread-count) :descriptors (os:open-descriptor-count)))

(defun growth-of (figure rests)
  "By how much FIGURE has grown over RESTS. What is kept for a moment makes a figure larger, so the
least one of each half counts. A few rests may all keep something: the second half of RESTS must
show the growth as well."
  (labels ((least (rests) (reduce #'min rests :key (lambda (rest) (getf rest figure))))
           (half (rests) (floor (length rests) 2))
           (growth (rests) (- (least (nthcdr (half rests) rests))
                              (least (subseq rests 0 (half rests))))))
    (min (growth rests) (growth (nthcdr (half rests) rests)))))

(defun check-figures (soak rests threads)
  "Judge RESTS, oldest first; what the first shift makes stays for good. THREADS is how many there
were before all work."
  (let* ((later (rest rests))
         (calls (max 1 (- (getf (first (last later)) :calls) (getf (first later) :calls)))))
    (loop for (figure limit) in `((:used ,*leak-octets*) (:resident ,*leak-resident-octets*))
          for growth = (growth-of figure later)
          do (report "soak: ~(~A~) memory grows by ~,2F MB after shift 1, ~,2F octets a call"
                     figure (/ growth 1048576.0) (float (/ growth calls)))
             (when (> growth limit)
               (note-problem soak "~(~A~) memory has grown by ~,1F MB." figure
                             (/ growth 1048576.0))))
    (flet ((descriptors (rest) (getf rest :descriptors)))
      (when (> (reduce #'max later :key #'descriptors) (descriptors (first rests)))
        (note-problem soak "There are more and more descriptors:~{ ~D~}."
                      (mapcar #'descriptors rests))))
    ;; those of the reserve end after a while; one may run the client's loop
    (unless (wait-until (lambda () (pass-time 0.1) (<= (thread-count) (1+ threads))) :seconds 60)
      (note-problem soak "There are ~D threads; there were ~D before." (thread-count) threads))
    (report "soak: ~D threads before, ~D after" threads (thread-count))))

;;; All of it

(defun report-endings (soak)
  (dolist (activity *activities*)
    (report "soak: ~(~21A~)~:{ ~(~A~) ~:D ~}" (first activity)
            (loop for (name . status) being the hash-keys of (soak-counts soak)
                    using (hash-value count)
                  when (eq name (first activity)) collect (list status count)))))

(defun call-with-soak (function seed)
  "Call FUNCTION with a soak whose servers and channels live as long."
  (let ((soak (make-soak :seed seed))
        (log *log-function*))
    (setf (soak-servers soak) (loop for execution in '(:auto :inline :blocking)
                                    for place from 0
                                    collect (start-probe (soak-handlers soak place)
                                                         :loops 2 :execution execution
                                                         :reserve-idle-seconds 1))
          (sb-ext:symbol-global-value '*log-function*)
          (lambda (level event &rest plist)
            ;; those who are told to break are logged; they and others who are no surprise
            (unless (or (member level '(:debug :info)) (eq event :handler-error))
              (note-problem soak "Logged: ~(~A~) ~S" event plist))))
    (unwind-protect
         (with-shop (shop shop-server)
           (setf (soak-shop soak) shop
                 (soak-channels soak) (map 'vector (lambda (server)
                                                     (grpc:make-channel
                                                      (grpc:server-address server)))
                                           (soak-servers soak)))
           (unwind-protect (funcall function soak)
             (map nil #'grpc:close-channel (soak-channels soak))))
      (setf (sb-ext:symbol-global-value '*log-function*) log)
      (dolist (server (soak-servers soak))
        (unless (grpc:stop-server server :drain 10)
          (note-problem soak "A server does not drain."))))
    soak))

(defun shift-count (seconds)
  (destructuring-bind (shortest longest) *shift-seconds*
    (max 8 (min 16 (floor seconds shortest)) (ceiling seconds longest))))

(defun run-shift (soak number shifts seconds progress)
  "Have everybody work for SECONDS and rest, the NUMBERth time of SHIFTS; print and return the
figures of the rest."
  (work-for soak seconds (+ (soak-seed soak) (* 1000 number))
            (lambda ()
              (funcall progress (format nil "shift ~D of ~D, ~:D calls, ~D problem~:P" number shifts
                                        (calls-so-far soak) (length (soak-problems soak))))))
  (let ((rest (rest-figures soak (length (soak-channels soak)))))
    (flet ((megabytes (figure) (/ (getf rest figure) 1048576.0)))
      (report "soak: shift ~2D: ~11:D calls, ~6,1F MB used, ~6,1F MB resident, ~D threads, ~
               ~D descriptors"
              number (getf rest :calls) (megabytes :used) (megabytes :resident) (getf rest :threads)
              (getf rest :descriptors)))
    rest))

(defun soak (seconds &key seed (progress #'identity))
  "Do everything at once for SECONDS, from 5 on, and print figures. Return the list of what was
wrong, texts. SEED, an integer, repeats another run as far as threads allow. PROGRESS is called
about once a second with a text that says how far things are."
  (let ((seed (or seed (random (ash 1 31) (make-random-state t))))
        (shifts (shift-count seconds)))
    (report "soak: ~D s in ~D shifts, seed ~D" seconds shifts seed)
    (reverse
     (soak-problems
      (call-with-soak
       (lambda (soak)
         (map nil #'grpc:ensure-connected (soak-channels soak))
         (sell (soak-shop soak))
         (let ((threads (thread-count)))
           (check-figures soak
                          (loop for number from 1 to shifts
                                collect (run-shift soak number shifts (/ seconds shifts)
                                                   progress))
                          threads))
         (report-endings soak))
       seed)))))

(defun soak-seconds ()
  "How long the test soaks; scripts/soak is for more."
  (let ((told (uiop:getenvp "CLGRPC_SOAK_SECONDS")))
    (if told
        (min 240 (max 5 (parse-integer told)))
        (support:at-length 10 120))))

(test soak
  (let ((problems (soak (soak-seconds))))
    (is (null problems) "~{~A~^ ~}" problems)))
