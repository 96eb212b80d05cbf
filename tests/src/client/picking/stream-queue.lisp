;;;; Calls that wait for a stream: the event that each waits for, their order, and the removal of
;;;; ended calls.

(in-package #:clgrpc.tests.client)

(defun call-with-full-servers (function)
  "Call FUNCTION with a core and two of its servers, which are ready and have no stream."
  (with-core (core puppet :round-robin)
    (client::wake core)
    (tell-backends puppet "127.0.0.1:1" "127.0.0.1:2")
    (dolist (subchannel (client:core-subchannels core))
      (client::end-connect-rounds (connection-set-of subchannel) "of a test")
      (client::change-state (connection-set-of subchannel) :ready))
    (funcall function core (subchannel-to core "127.0.0.1:1") (subchannel-to core "127.0.0.1:2"))))

(defmacro with-full-servers ((core first second) &body body)
  `(call-with-full-servers (lambda (,core ,first ,second)
                             (declare (ignorable ,second))
                             ,@body)))

(defun have-picked (core choosy &rest picked)
  "Let CORE's picker return the values PICKED for its next calls, in turn, over and over."
  (let ((left '()))
    (client::change-picker core :ready
                           (client:make-picker (fn (_call)
                                                 (unless left (setf left picked))
                                                 (pop left))
                                               "a test's" :choosy choosy))))

(defun places-left (core)
  "The numbers of places in all queues of CORE, as found and as counted."
  (list (length (client::waiting-calls core))
        (client::stream-queue-count (client::core-stream-queue core))
        (+ (client::stream-queue-unpicked-count (client::core-stream-queue core))
           (reduce #'+ (client:core-subchannels core) :key #'client::subchannel-waiting-count))))

(test calls-that-end-leave-the-queue
  "A call leaves all its places, in any queue and at any position, even if it waits twice."
  (dolist (choosy '(nil t))
    (with-full-servers (core first second)
      (have-picked core choosy first second nil)
      (let ((calls (loop repeat 9 collect (begin-ask core))))
        (is (equal calls (client::waiting-calls core)))
        (client::add-queued-attempt (first calls) first #'client::take-stream)
        (client::add-queued-attempt (first calls) second #'client::take-stream)
        (is (equal '(11 11 11) (places-left core)))
        (loop for (gone . left) on calls
              do (client::end-client-call gone :cancelled "of a test")
                 (is (null (client::client-parts-queued-attempt (client::call-client-parts gone))))
                 (is (equal left (client::waiting-calls core))))
        (is (equal '(0 0 0) (places-left core)))
        (is (not (client:waiting-p core)))))))

(test another-picker-takes-them-in-the-order-in-which-they-came
  (with-full-servers (core first second)
    (let ((calls '()))
      (flet ((begin () (setf calls (append calls (list (begin-ask core :wait-for-ready t))))))
        (have-picked core t first second (client:make-failure "not now"))
        (loop repeat 7 do (begin))
        (have-picked core nil second)
        (is (equal calls (client::waiting-calls core)))
        (begin)
        (have-picked core t nil second first)
        (begin)
        (is (equal calls (client::waiting-calls core)))
        (is (equal '(9 9 9) (places-left core)))
        (have-picked core t (client:make-failure "never" :unavailable t))
        (is (equal '(0 0 0) (places-left core)))
        (is (every #'grpc:call-status calls))))))

(test calls-outlive-the-server-that-was-picked-for-them
  (with-full-servers (core first second)
    (have-picked core t first)
    (let ((calls (loop repeat 3 collect (begin-ask core))))
      (is (= 3 (client::subchannel-waiting-count first)))
      (client:close-subchannel first)
      (is (equal calls (client::waiting-calls core)))
      (is (equal '(3 3 3) (places-left core)))
      (have-picked core t second)
      (is (= 3 (client::subchannel-waiting-count second)))
      (is (equal calls (client::waiting-calls core)))
      (is (notany #'grpc:call-status calls)))))

(defun count-picks (channel count choosy)
  "Make COUNT calls on CHANNEL at a time; return the number of picks by a picker that is CHOOSY or
not and always picks the only server."
  (grpc:ensure-connected channel)
  (let ((picks 0) (subchannel (the-subchannel channel)) (core (client::channel-core channel)))
    (client::look-at core
                     (lambda ()
                       (client::change-picker
                        core :ready (client:make-picker (fn (_call)
                                                          (incf picks)
                                                          subchannel)
                                                        "counts" :choosy choosy))))
    (let ((calls (loop for i below count
                       collect (grpc:call-async #'lab.bench:ask channel (note i)))))
      (is (equal (loop for i below count collect (* 2 i))
                 (loop for call in calls collect (number-of (grpc:await call))))))
    picks))

(test the-end-of-a-stream-concerns-as-many-calls-as-it-frees-streams-for
  "The number of picks is proportional to the number of calls, not to its square, with a choosy
picker or not and with a guard or not."
  (loop for (choosy . options) in '((nil)
                                    (t)
                                    (nil :max-concurrent-requests 100000)
                                    (t :max-concurrent-requests 100000)
                                    (nil :breaker-max-waiting 100000)
                                    (nil :breaker-failure-percent 50))
        do (with-probe (channel :options '(:max-concurrent-streams 10) :channel-options options)
               (:ask #'double)
             (let ((picks (count-picks channel 400 choosy)))
               (is (<= 400 picks 1700) "~D picks, choosy ~A, ~S" picks choosy options)))))

(test a-stream-goes-to-a-call-that-its-server-was-picked-for
  "Calls that wait for another server are not examined."
  (with-full-servers (core first second)
    (have-picked core t first second)
    (let ((calls (loop repeat 6 collect (begin-ask core)))
          (picks 0))
      (setf (client::core-picker core)  ; not published: nobody looks at calls again
            (client:make-picker (lambda (call) (declare (ignore call)) (incf picks) nil) "counts"
                                :choosy t))
      (client::end-client-call (third calls) :cancelled "of a test")
      (client::serve-waiting core first)
      (is (zerop picks))
      (is (equal (list (first calls) (fifth calls))
                 (mapcar #'client::queued-attempt-call
                         (ring-list (client::subchannel-waiting first))))))))
