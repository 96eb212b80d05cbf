;;;; Victims in processes of their own: what they have of memory is theirs alone, and one that ends
;;;; ends nobody else.

(in-package #:clgrpc.tests.abuse)

(defun call-with-lisp-server (function megabytes system form)
  "Call FUNCTION with a program, a Lisp with a heap of so many MEGABYTES that loads SYSTEM and
evaluates FORM, a string, by which it serves until it is killed, and with its address; check that it
still runs afterwards, and has said nothing more."
  (support:with-program
      (program sb-ext:*runtime-pathname*
               "--noinform" "--dynamic-space-size" (princ-to-string megabytes)
               "--non-interactive" "--no-sysinit" "--no-userinit"
               "--load" (support:root-file "scripts/load.lisp")
               "--eval" (format nil "(asdf:load-system ~S)" system)
               "--eval" form)
    (let ((prefix "listening on "))
      (multiple-value-prog1
          (funcall function program
                   (loop for line = (or (support:program-line program :timeout-seconds 300)
                                        (error "The victim has ended before it listened."))
                         until (uiop:string-prefix-p prefix line)
                         finally (return (subseq line (length prefix)))))
        (is-true (sb-ext:process-alive-p (support:program-process program)))
        (support:kill-program program)
        (is (equal '() (loop for line = (support:program-line program) while line
                             collect line)))))))

(defmacro with-lisp-server ((program address &key (megabytes 2048) system form) &body body)
  "Evaluate BODY as CALL-WITH-LISP-SERVER says."
  `(call-with-lisp-server (lambda (,program ,address)
                            (declare (ignorable ,program))
                            ,@body)
                          ,megabytes ,system ,form))

(defun go-through-nursery ()
  "Have this process be one that has been in service for a while: what is consed between two
collections has been used once."
  (let ((end (+ (sb-ext:get-bytes-consed) (sb-ext:bytes-consed-between-gcs)))
        (garbage nil))
    (loop while (< (sb-ext:get-bytes-consed) end)
          do (setf garbage (make-octets 1000)))
    garbage))

(defun serve-as-victim (handlers)
  "Serve a probe with HANDLERS, as a process that serves all day does; print where, and nothing else
unless something goes wrong."
  (grpc:tune-collector)
  (go-through-nursery)
  (setf *log-function* (lambda (level event &rest plist)
                         (when (eq level :error)
                           (format t "~S~%" (cons event plist))
                           (finish-output))))
  (format t "listening on ~A~%" (grpc:server-address (start-probe handlers)))
  (finish-output)
  (sb-thread:wait-on-semaphore (sb-thread:make-semaphore)))

(defun peak-growth (program before)
  "How many octets more than BEFORE PROGRAM has had since FORGET-PEAK returned that."
  (- (process-octets "VmHWM" (support:program-pid program)) before))

(defun check-memory-comes-back (program before)
  "Check that PROGRAM, whose storm is over, soon has twice as much memory as BEFORE at most."
  (flet ((resident () (process-octets "VmRSS" (support:program-pid program))))
    (let ((pause (make-signal)) (after (resident)))
      (is-true (wait-until (lambda ()
                             (await-signal pause :seconds 0.1) ; which nobody signals
                             (< (resident) (* 2 before)))
                           :seconds 60)
               "~,1F MB before, ~,1F MB after it, ~,1F MB now" (/ before 1e6) (/ after 1e6)
               (/ (resident) 1e6)))))
