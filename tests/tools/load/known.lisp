;;;; A server whose delays are known: it answers each call when a function of the call's number
;;;; says, and notes when it has. So there are two things to hold a measurement against: what theory
;;;; says of such delays, and what the server has really done.

(in-package #:clgrpc.tests.load)

(defclass known (routeguide:route-guide)
  ((due :initarg :due :reader known-due) ; (number now-ns) returns when to answer
   (answered :initarg :answered :reader known-answered) ; by number: when, in ns of 1970
   (late :initform (load:make-histogram) :reader known-late) ; by how much after DUE
   (waiting :initform '() :accessor known-waiting) ; (due-ns . call), the first first
   (lock :initform (sb-thread:make-mutex) :reader known-lock)
   (news :initform (sb-thread:make-semaphore) :reader known-news)
   (over :initform nil :accessor known-over))
  (:documentation "GetFeature with its number for latitude is answered by a thread at DUE."))

(defmethod routeguide.route-guide:get-feature ((service known) point &key call)
  (let* ((number (routeguide:point-latitude point))
         (due-ns (funcall (known-due service) number (base:monotonic-ns))))
    (sb-thread:with-mutex ((known-lock service))
      (setf (known-waiting service)
            (merge 'list (known-waiting service) (list (list due-ns number call)) #'<
                   :key #'first))
      (when (eql number (second (first (known-waiting service))))
        (sb-thread:signal-semaphore (known-news service))))
    call))

(defun look-for-answer (service)
  "The first answer of SERVICE if it is due: when it was, its number and its call; or nil, and the
nanoseconds until then."
  (sb-thread:with-mutex ((known-lock service))
    (let* ((first (first (known-waiting service)))
           (left (if first (- (first first) (base:monotonic-ns)) 1000000000)))
      (if (plusp left)
          (values nil left)
          (pop (known-waiting service))))))

(defun next-answer (service)
  "Wait until an answer of SERVICE is due and return what LOOK-FOR-ANSWER says of it; nil at the end."
  (loop until (known-over service)
        do (multiple-value-bind (answer left) (look-for-answer service)
             (when answer (return answer))
             (sb-thread:wait-on-semaphore (known-news service) :timeout (/ left 1d9)))))

(defun answer-when-due (service)
  (os:set-timer-slack 1)
  (loop for (due-ns number call) = (next-answer service)
        while call
        do (load:record-value (known-late service) (- (base:monotonic-ns) due-ns))
           (setf (aref (known-answered service) number) (base:real-time-ns))
           (grpc:reply call (routeguide:make-feature))))

(defun call-with-known-server (function due count)
  "Call FUNCTION with the address of a server that answers call NUMBER, below COUNT, when DUE, a
function of NUMBER and now, says, with the vector of when it has answered which, and the histogram
of by how much too late."
  (let* ((answered (make-array count :initial-element 0))
         (service (make-instance 'known :due due :answered answered))
         (thread (sb-thread:make-thread #'answer-when-due :name "known delays"
                                                          :arguments (list service))))
    (unwind-protect
         (with-server (address service :execution :inline)
           (funcall function address answered (known-late service)))
      (setf (known-over service) t)
      (sb-thread:signal-semaphore (known-news service))
      (sb-thread:join-thread thread))))

;;; Delays, each with the quantiles that theory has for it

(defun spread-number (number count)
  "A place below COUNT for NUMBER: each has one, and those of neighbours are far apart."
  (mod (* number 7919) count))          ; a prime that no COUNT of a test is a multiple of

(defun constant-delay (ns)
  (values (lambda (number now) (declare (ignore number)) (+ now ns))
          (constantly ns)))

(defun exponential-delay (mean-ns count)
  "Delays of COUNT calls that are exponential of mean MEAN-NS, not by chance but one of each of COUNT
shares that are as likely, so that their quantiles are the theory's."
  (flet ((quantile (share) (round (- (* mean-ns (log (- 1d0 share)))))))
    (values (lambda (number now)
              (+ now (quantile (/ (+ 1/2 (spread-number number count)) count))))
            #'quantile)))

(defun stalling (every-ns stall-ns)
  "No delay, but nothing is answered in the last STALL-NS of EVERY-NS, from somewhat before the first
call on. Of calls at an even rate the share STALL-NS / EVERY-NS waits, from all of STALL-NS down to
nothing."
  (let ((begin nil))
    (values (fn (_number now)
              (unless begin (setf begin (- now 500000)))
              (let ((at (mod (- now begin) every-ns)))
                (if (< at (- every-ns stall-ns)) now (+ now (- every-ns at)))))
            (lambda (share)
              (max 0 (- stall-ns (* every-ns (- 1 share))))))))
