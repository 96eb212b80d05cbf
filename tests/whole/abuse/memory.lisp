;;;; More answers than a heap has room for. The server is a process of its own with a small heap,
;;;; since it is one that must not end.

(in-package #:clgrpc.tests.abuse)

(defmacro with-small-server ((address megabytes) &body body)
  "Evaluate BODY with ADDRESS bound to that of `clgrpc-testee serve interop`, which has a heap of so
many MEGABYTES and must live."
  (let ((program (gensym "PROGRAM")))
    `(with-lisp-server (,program ,address :megabytes ,megabytes :system "clgrpc-tools/testee"
                                 :form "(clgrpc.tools:run-command
                                         '(\"serve\" \"interop\" \"--listen\" \"127.0.0.1:0\"
                                           \"--log-level\" \"none\"))")
       ,@body)))

(defun answer-request (octets)
  "The request of a UnaryCall whose answer is to have so many OCTETS, framed."
  (framed (concatenate 'octets '(16)
                       (loop for rest = octets then (ash rest -7)
                             collect (logior (logand rest 127) (if (< rest 128) 0 128))
                             until (< rest 128)))))

(defun demand-answer (attacker octets)
  (demand attacker "/grpc.testing.TestService/UnaryCall" (answer-request octets)))

(defun answered-p (address octets)
  "True if a client that takes its answers gets one of so many OCTETS."
  (with-attacker (attacker address :settings '((:initial-window-size 100000000)))
    (eq :ok (verdict attacker (demand-answer attacker octets)))))

(test answers-that-nobody-takes
  "Long ones, of many connections, of which a heap has room for a part: the rest waits or is
refused, short answers are given all the while, and long ones again once the silent have gone."
  ;; with 256 MB what is held and the program together may press the memory
  (with-small-server (address 512)
    (let ((silent (loop repeat 100 collect (greet (connect address)))))
      (unwind-protect
           (progn
             (dolist (attacker silent)
               (loop repeat 4 do (demand-answer attacker 1000000)))
             (with-attacker (decent address)
               (dotimes (i 20)
                 (is (eq :ok (verdict decent (demand decent "/grpc.testing.TestService/EmptyCall"
                                                     (framed (octets-of)))))))))
        (dolist (attacker silent) (close-socket (attacker-socket attacker)))))
    (eventually (answered-p address 1000000))))

(defun hear-endings (attackers count)
  "The last frames of the streams of ATTACKERS, a list for each attacker: COUNT frames, or fewer if
its connection ends or two minutes pass. The attackers hear by turns, since a server ends the
connection of a peer that reads nothing for long."
  (let ((all (mapcar #'list attackers))
        (end (+ (monotonic-ns) (seconds-ns 120))))
    (flet ((open-p (entry)
             (destructuring-bind (attacker . endings) entry
               (and (< (length endings) count) (not (attacker-closed attacker))))))
      (loop while (and (some #'open-p all) (< (monotonic-ns) end))
            do (dolist (entry (remove-if-not #'open-p all))
                 (hear (first entry)
                       (lambda (form)
                         (when (member :end-stream form) (push form (rest entry))))
                       :seconds 0.2))))
    (mapcar #'rest all)))

(test answers-larger-than-memory
  "Clients that read, of more long answers at once than the heap has room for: each is given or
refused, and the server lives."
  (with-small-server (address 256)
    (dolist (octets (support:at-length '(4000000) '(1000000 4000000)))
      (let ((attackers (loop repeat 25
                             collect (greet (connect address)
                                            '(:initial-window-size 100000000))))
            (count (if (< octets 4000000) 12 4))
            (given 0))
        (unwind-protect
             (progn
               (dolist (attacker attackers)
                 (loop repeat count do (demand-answer attacker octets)))
               (dolist (endings (hear-endings attackers count))
                 (is (= count (length endings)))
                 (dolist (form endings)
                   (is (member (ending-of form) '(:ok :resource-exhausted)))
                   (when (eq :ok (ending-of form)) (incf given))))
               (is (plusp given)))
          (dolist (attacker attackers) (close-socket (attacker-socket attacker))))))
    ;; what the attackers held is the collector's now
    (eventually (answered-p address 1000000))))

;;; Messages that take much more memory once they are decoded

(defun send-all-but-last (attacker message)
  "Begin a StreamingOutputCall with MESSAGE, and send all of that but the last octet. Return the
stream's identifier."
  (let ((id (new-id attacker)) (last (1- (length message))))
    (throw-frames attacker (list :headers id
                                 (request-fields "/grpc.testing.TestService/StreamingOutputCall")))
    (loop for start from 0 below last by 16000
          do (throw-frames attacker
                           (list :data id (subseq message start (min last (+ start 16000))))))
    id))

(defun swelling-message (count)
  "A StreamingOutputCallRequest with COUNT empty messages, framed."
  (framed (coerce (loop repeat count collect 18 collect 0) 'octets)))

(test messages-that-swell
  "A hundred that come at once, each of which takes forty times its octets when it is decoded, and
is held by a handler whose answers nobody takes: each is taken or refused, the server lives, and
others are served all the while."
  (with-small-server (address 512)
    (let* ((message (swelling-message 200000))
           (attackers (loop repeat 100 collect (greet (connect address)))))
      (unwind-protect
           (let ((ids (mapcar (lambda (attacker) (send-all-but-last attacker message)) attackers)))
             (loop for attacker in attackers
                   for id in ids
                   do (throw-frames attacker (list :data id (subseq message (1- (length message)))
                                                   :end-stream)))
             (with-attacker (decent address)
               (dotimes (i 50)
                 (is (eq :ok (verdict decent (demand decent "/grpc.testing.TestService/EmptyCall"
                                                     (framed (octets-of)))))))))
        (dolist (attacker attackers) (close-socket (attacker-socket attacker)))))
    (eventually (answered-p address 1000000))))

(defun answer-within-process ()
  "Have 60 threads get five answers of 4 MB each from a handler in this process; print how many were
given, refused, and ended otherwise."
  (let* ((server (start-probe (list :ask (handling (note)
                                           (note 1 :body (number-of note))))))
         (channel (grpc:server-channel server))
         (given (list 0)) (refused (list 0)) (others (list 0)))
    (flet ((call-on ()
             (loop repeat 5
                   do (sb-ext:atomic-incf
                       (car (handler-case (progn (ask channel (note 4000000) :timeout 60) given)
                              (grpc:resource-exhausted () refused)
                              (error () others)))))))
      (mapc #'sb-thread:join-thread
            (loop repeat 60 collect (sb-thread:make-thread #'call-on))))
    (format t "given ~D refused ~D else ~D~%" (car given) (car refused) (car others))
    (finish-output)
    (sb-ext:exit :abort t)))

(test answers-within-a-process
  "More long answers at once than the heap has room for, and as many copies: each is given or
refused, and the process lives."
  (let ((told (nth-value 1 (support:run-to-end
                            sb-ext:*runtime-pathname*
                            (list "--noinform" "--dynamic-space-size" "384" "--non-interactive"
                                  "--no-sysinit" "--no-userinit"
                                  "--load" (support:root-file "scripts/load.lisp")
                                  "--eval" "(asdf:load-system \"clgrpc-tests/abuse\")"
                                  "--eval" "(clgrpc.tests.abuse::answer-within-process)")))))
    (destructuring-bind (&optional (given 0) (refused 0) (others 300))
        (loop for word in (uiop:split-string (first (last told)))
              for number = (parse-integer word :junk-allowed t)
              when number collect number)
      (is (= 300 (+ given refused)) "~S" (last told))
      (is (plusp given))
      (is (zerop others)))))

(defun storm-of-answers (address)
  "Long ones, that are taken."
  (let ((threads (loop repeat 4
                       collect (in-thread (loop repeat 15 always (answered-p address 4000000))))))
    (is (every #'sb-thread:join-thread threads))))

(defun storm (address count function &optional (felt-p (constantly t)))
  "Have COUNT connections, to each of which FUNCTION is applied, until FELT-P is true."
  (with-connected (attackers count address)
    (dolist (attacker attackers)
      (funcall function (greet attacker)))
    (is-true (answered-p address 10))
    (is-true (wait-until felt-p) "It was no storm.")))

(defun storm-of-silence (address felt-p)
  "Long ones, that nobody takes, until FELT-P is true."
  (storm address 50
         (lambda (attacker)
           (loop repeat 4 do (demand-answer attacker 1000000)))
         felt-p))

(defun storm-of-halves (address)
  "Messages that lack their end."
  (let ((half (concatenate 'octets (octets-of 0 0 1 0 0) (make-octets 15000))))
    (storm address 100 (lambda (attacker)
                         (demand attacker "/grpc.testing.TestService/UnaryCall" half :end nil)
                         (demand attacker "/grpc.testing.TestService/UnaryCall" half :end nil)))))

(defun storm-of-requests (address)
  "To no method, by peers that do not read."
  (storm address 4 (lambda (attacker)
                     (throw-some attacker
                                 (many-requests attacker (request-fields "/no.Such/Method") 100000)
                                 0 0.3))))

(defun storm-of-frames (address)
  (storm address 4 (lambda (attacker) (flood attacker (opening-octets '(:ping 7)) 100000))))

(defun storm-of-connections (address)
  (dotimes (i 2000)
    (close-socket (attacker-socket (connect address)))))

(test memory-comes-back
  "After storms of all kinds a server that has been idle for a while has at most twice the memory
that it had before."
  (support:with-server-program (program address (support:testee-program)
                                        "serve" "interop" "--listen" "127.0.0.1:0"
                                        "--log-level" "none")
    (let* ((pid (support:program-pid program))
           (before (forget-peak pid)))
      (storm-of-silence address (lambda () (< (* 2 before) (process-octets "VmHWM" pid))))
      (dolist (storm '(storm-of-answers storm-of-halves storm-of-requests storm-of-frames
                       storm-of-connections))
        (funcall storm address)
        (format t "~&; ~(~A~): ~,1F MB resident, ~,1F at most, ~,1F at first~%" storm
                (/ (process-octets "VmRSS" pid) 1e6) (/ (process-octets "VmHWM" pid) 1e6)
                (/ before 1e6)))
      (is (< (* 3 before) (process-octets "VmHWM" pid)) "It was no storm.")
      (check-memory-comes-back program before)
      (is-true (answered-p address 1000000)))))

(defun call-now-and-then (address over)
  "Make a hundred small calls a second until the signal OVER."
  (with-attacker (decent address)
    (loop until (await-signal over :seconds 0.01)
          do (verdict decent (demand decent "/grpc.testing.TestService/EmptyCall"
                                     (framed (octets-of)))))))

(test memory-comes-back-to-the-watched
  "A server that is asked a hundred times a second gives back what a storm needed, too."
  (support:with-server-program (program address (support:testee-program)
                                        "serve" "interop" "--listen" "127.0.0.1:0"
                                        "--log-level" "none")
    (let* ((pid (support:program-pid program))
           (before (forget-peak pid))
           (over (make-signal)))
      ;; more than it may have afterwards
      (storm-of-silence address (lambda () (< (* 2 before) (process-octets "VmHWM" pid))))
      (let ((thread (in-thread (call-now-and-then address over))))
        (unwind-protect (check-memory-comes-back program before)
          (signal-it over)
          (sb-thread:join-thread thread))))))
