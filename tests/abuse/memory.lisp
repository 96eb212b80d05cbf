;;;; More answers than a heap has room for. The server is a process of its own with a small heap,
;;;; since it is one that must not end.

(in-package #:clgrpc.tests.abuse)
(in-suite :clgrpc.abuse)

(defun call-with-small-server (function megabytes)
  "Call FUNCTION with the address of `clgrpc serve interop`, which runs with a heap of so many
MEGABYTES; check that it still runs afterwards."
  (support:with-program
      (program sb-ext:*runtime-pathname*
               "--noinform" "--dynamic-space-size" (princ-to-string megabytes)
               "--non-interactive" "--no-sysinit" "--no-userinit"
               "--load" (support:root-file "scripts/load.lisp")
               "--eval" "(asdf:load-system \"clgrpc/tools\")"
               "--eval" "(clgrpc.tools:run-command
                          '(\"serve\" \"interop\" \"--listen\" \"127.0.0.1:0\"
                            \"--log-level\" \"none\"))")
    (let ((prefix "listening on "))
      (funcall function
               (loop for line = (support:program-line program :timeout-seconds 300)
                     until (uiop:string-prefix-p prefix line)
                     finally (return (subseq line (length prefix))))))
    (is-true (sb-ext:process-alive-p (support:program-process program)))))

(defmacro with-small-server ((address megabytes) &body body)
  "Evaluate BODY as CALL-WITH-SMALL-SERVER says."
  `(call-with-small-server (lambda (,address) ,@body) ,megabytes))

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
  (with-small-server (address 256)
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
    (is-true (wait-until (lambda () (answered-p address 1000000))))))

(test answers-larger-than-memory
  "Clients that read, of more long answers at once than the heap has room for: each is given or
refused, and the server lives."
  (with-small-server (address 256)
    (dolist (octets '(1000000 4000000))
      (let ((attackers (loop repeat 25
                             collect (greet (connect address)
                                            '(:initial-window-size 100000000)))))
        (unwind-protect
             (let ((calls (loop for attacker in attackers
                                collect (loop repeat (if (< octets 4000000) 12 4)
                                              collect (demand-answer attacker octets))))
                   (given 0))
               (loop for attacker in attackers
                     for ids in calls
                     do (let* ((endings '())
                               (heard (hear attacker
                                            (lambda (form)
                                              (when (member :end-stream form)
                                                (push form endings))
                                              (= (length ids) (length endings)))
                                            :seconds 30)))
                          (declare (ignore heard))
                          (is (= (length ids) (length endings)))
                          (dolist (form endings)
                            (is (member (ending-of form) '(:ok :resource-exhausted)))
                            (when (eq :ok (ending-of form)) (incf given)))))
               (is (plusp given)))
          (dolist (attacker attackers) (close-socket (attacker-socket attacker))))))
    (is-true (answered-p address 1000000))))

(defun resident-megabytes (program)
  "How much memory PROGRAM has."
  (with-open-file (in (format nil "/proc/~D/statm" (support:program-pid program)))
    (read in)
    (/ (* 4096 (read in)) 1e6)))

(test memory-comes-back
  "After a storm of long answers a server that has been idle for a while has at most twice the
memory that it had before."
  (support:with-server-program (program address (support:clgrpc-program)
                                        "serve" "interop" "--listen" "127.0.0.1:0")
    (let* ((before (resident-megabytes program))
           (threads (loop repeat 4
                          collect (sb-thread:make-thread
                                   (lambda ()
                                     (loop repeat 15 always (answered-p address 4000000)))))))
      (is (every #'sb-thread:join-thread threads))
      (is (< (* 3 before) (resident-megabytes program)) "It was no storm.")
      (let ((pause (make-signal)))
        (is-true (wait-until (lambda ()
                               (await-signal pause :seconds 0.1) ; which nobody signals
                               (< (resident-megabytes program) (* 2 before)))
                             :seconds 30)
                 "~,1F MB before, ~,1F MB now" before (resident-megabytes program))))))
