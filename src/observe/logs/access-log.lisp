;;;; The access log: an event for each call that has ended, for the log of the process or a function
;;;; of its own. An access log is a source of observers, which get only the ends of calls, so one
;;;; access log may be given to any number of servers and channels.
;;;;
;;;; The choice of calls to log is made when they end, so that failures can be logged whatever the
;;;; ratio is. A loop draws how many calls it passes over before the next that it logs, so a call
;;;; that is not logged costs a count and a test of its status. Within the image, where threads
;;;; share no loop, each call costs a random number, a hash of a shared count.
;;;;
;;;; A peer can make calls that fail at some millions a second, and each event costs more than such
;;;; a call. So a loop logs +FAILURES-PER-SECOND+ of each peer's failures that chance has not
;;;; chosen, and counts the others: one event a second gives their number.

(in-package #:clgrpc.logs)

(defclass access-log ()
  ((threshold :initarg :threshold :reader access-log-threshold) ; a draw below this logs the call
   (failures :initarg :failures :reader access-log-failures) ; true if all failures are logged
   ;; a log function, or nil for LOG-EVENT
   (function :initarg :function :reader access-log-function)
   ;; a function of a call that returns an alist of names and texts, or nil
   (exemplar :initarg :exemplar :reader access-log-exemplar))
  (:documentation "A log with an event for each call of servers and channels: see
MAKE-ACCESS-LOG."))

(defconstant +chances+ (expt 2 32)
  "The number of possible draws; a threshold is the number of draws that log the call.")

(define-keyword-function make-access-log (&key (ratio 1) (failures t) function exemplar)
  "Return an access log, for :observer of START-SERVER, MAKE-CHANNEL or SERVER-CHANNEL. When a call
ends, FUNCTION, which is called as *LOG-FUNCTION* is, gets the event :CALL of the level :info. If
FUNCTION is nil, the log of the process gets the event. RATIO, a real from 0 to 1, is the share of
calls that are logged; they are chosen at random. If FAILURES is true, failed calls (with another
status than :ok) that were not chosen are logged as well: on each loop at most 10 a second for each
peer, and all of them within the image. The event :CALLS-NOT-LOGGED reports how many more failed. A
peer is a host without its port; above 64 hosts a second, the others share one count. EXEMPLAR is
nil or a function of a call that returns an alist of names and texts, such as the user's name, which
are added to the event, as are the ids of its trace. Both functions are called on the call's loop,
so they must not wait; an error in them is logged. doc/observability.md lists the fields of the
event. Signal MISUSE for other arguments. From any thread."
  (unless (typep ratio '(real 0 1))
    (misuse ":ratio is a number from 0 to 1, not ~S." ratio))
  (dolist (given (list function exemplar))
    (unless (typep given '(or function symbol))
      (misuse "An access log calls a function, or a symbol that names one, not ~S." given)))
  (make-instance 'access-log :threshold (round (* ratio +chances+)) :failures (and failures t)
                             :function function :exemplar exemplar))

(define-printer (log access-log)
  "~,2F %~:[~; and failures~]" (* 100 (/ (access-log-threshold log) +chances+))
  (access-log-failures log))

;;; Chance

(defun make-draw (threshold event-loop)
  "A function without arguments that returns true with a probability of THRESHOLD divided by
+CHANCES+. The function is called on EVENT-LOOP or, if EVENT-LOOP is nil, from any thread."
  (declare (type (integer 0 #.+chances+) threshold))
  (cond ((zerop threshold) (constantly nil))
        ((= threshold +chances+) (constantly t))
        (event-loop (make-loop-draw threshold (loop:event-loop-random event-loop)))
        (t (let ((count (make-array 1 :element-type 'sb-ext:word :initial-element (hash-seed))))
             (lambda ()
               (< (ash (mixed-word (sb-ext:atomic-incf (aref count 0) +signed-golden-step+)) -32)
                  threshold))))))

(defun make-loop-draw (threshold random)
  "Do what MAKE-DRAW does for a loop; RANDOM is the loop's random-state, which only the loop may
use."
  (declare (type (integer 0 #.+chances+) threshold))
  (let ((scale (log (- 1 (/ (float threshold 1d0) +chances+))))
        ;; how many draws lose before the next that wins, of the geometric distribution
        (left (make-array 1 :element-type '(signed-byte 64) :initial-element -1)))
    (lambda ()
      (declare (optimize (speed 1) (debug 0)))
      (when (minusp (aref left 0))
        (setf (aref left 0) (floor (log (- 1 (random 1d0 random))) scale)))
      (minusp (setf (aref left 0) (1- (aref left 0)))))))

;;; Failures

(defconstant +failures-per-second+ 10
  "The maximum number of a peer's failures that a loop logs in a second, besides those that chance
has chosen.")
(defconstant +peers-per-second+ 64
  "The number of peers whose failures are counted separately in each second; those of all other
peers are counted together.")

(defstruct (failures (:copier nil))
  "The failures that a loop has logged, and not logged, in this second."
  (loop nil :type loop:event-loop :read-only t) ; the loop to which the counts belong
  ;; the function that is called as *LOG-FUNCTION* is
  (tell nil :type (or symbol function) :read-only t)
  ;; how many failures each peer has had, by its address without the port
  (counts (make-hash-table :test 'equal) :type hash-table :read-only t)
  (end-ns 0 :type (unsigned-byte 62))   ; when the current second is over
  (scheduled nil :type boolean))        ; a timer will report the number of failures that were not
                                        ; logged

(declaim (sb-ext:freeze-type failures))

(define-printer (failures failures)
  "of ~D peers" (hash-table-count (failures-counts failures)))

(defun tell-failures (failures)
  "At the end of FAILURES' second, log how many failures were not logged, and forget them."
  (let ((counts (failures-counts failures)))
    (setf (failures-scheduled failures) nil)
    (let ((rows (loop for peer being the hash-keys of counts using (hash-value count)
                      when (< +failures-per-second+ count)
                        collect (format nil "~D of ~A" (- count +failures-per-second+) peer))))
      (clrhash counts)
      (when rows
        (loop:guarding (:observer-error)
          (funcall (failures-tell failures) :warning :calls-not-logged
                   :what (format nil "~{~A~^, ~}" rows)))))))

(defun peer-host (peer)
  "The address PEER, or nil, without its port."
  (let ((colon (and peer (position #\: peer :from-end t))))
    (cond ((null peer) "no peer")
          ((or (null colon) (uiop:string-prefix-p "unix" peer)) peer)
          (t (subseq peer 0 colon)))))

(defun log-failure-p (failures call)
  "True if the failure of CALL must be logged; if not, count it. On the loop of FAILURES."
  (let* ((counts (failures-counts failures))
         (loop (failures-loop failures))
         (now (loop:event-loop-now loop))
         (host (peer-host (rpc:call-peer call))))
    (unless (or (< now (failures-end-ns failures)) (failures-scheduled failures))
      (clrhash counts)
      (setf (failures-end-ns failures) (+ now +ns-per-second+)))
    (unless (or (gethash host counts) (< (hash-table-count counts) +peers-per-second+))
      (setf host "others"))
    (or (<= (incf (the fixnum (gethash host counts 0))) +failures-per-second+)
        (progn (unless (shiftf (failures-scheduled failures) t)
                 (loop:start-timer loop (make-timer #'tell-failures failures)
                                   (failures-end-ns failures)))
               nil))))

;;; The event

(defun status-text (status)
  "STATUS, a keyword, as gRPC's documents write it."
  (if (eq :ok status) "OK" (substitute #\_ #\- (string status))))

(defun attempt-count (call)
  "The number of attempts of CALL, a client's call that has just ended; at least 1."
  (multiple-value-bind (retries hedges transparent) (operate repeats call)
    (max (+ 1 retries hedges transparent)
         ;; calls within the image do not count repeats
         (+ (length (rpc:failed-attempts call)) (if (eq :ok (call-status call)) 1 0)))))

(defun outcome-plist (call)
  "A plist about the end of CALL, whose status is not :ok."
  (let ((error (rpc:call-condition call)))
    (list :message (status:rpc-error-message error) :ended-by (status:rpc-error-ended-by error))))

(defun exemplar-plist (exemplar call)
  "The value of EXEMPLAR, a function or nil, for CALL, as a plist."
  (loop for (name . text) in (and exemplar (funcall exemplar call))
        collect (intern (substitute #\- #\_ (string-upcase name)) '#:keyword)
        collect text))

(defun added-plist (exemplar call)
  "The value of EXEMPLAR for CALL, and the ids of its trace, if it is traced."
  (let ((said (exemplar-plist exemplar call)))
    (if (getf said :trace-id)
        said
        (nconc said (funcall rpc:**call-ids** call)))))

(defparameter *counted-stages* '(:messages-sent :messages-received)
  "The keys of CALL-STAGES that are separate fields of the event.")

(defun stages-plist (stages)
  "The part of STAGES, a value of CALL-STAGES, that shows how the time was spent."
  (loop for (name value) on stages by #'cddr
        unless (or (member name *counted-stages*)
                   ;; :ATTEMPTS of STAGES are attempts to connect, unlike :attempts of the event
                   (member name '(:total :attempts :remaining :requests-open)))
          ;; the log writes a list of keywords alone as a list, and the stages must always be an
          ;; object
          nconc (list name (if (keywordp value) (string-downcase value) value))))

(defun call-plist (call target exemplar)
  "The content of the event of CALL, which has just ended. TARGET is the target of its channel, or
nil; EXEMPLAR is the access log's."
  (let ((method (call-rpc-method call))
        (stages (rpc:call-stages call)))
    (multiple-value-bind (sent received) (operate traffic call)
      (nconc (list :role (if (rpc:client-p call) :client :server)
                   :method (and method (method:rpc-method-path method)))
             (if (rpc:client-p call)
                 (and target (list :target target))
                 (let ((protocol (operate protocol call)))
                   (and protocol (list :protocol protocol))))
             (list :peer (rpc:call-peer call) :status (status-text (call-status call)))
             (if (eq :ok (call-status call)) nil (outcome-plist call))
             (list :seconds (ns-seconds (operate elapsed-ns call)))
             (and (rpc:client-p call) (list :attempts (attempt-count call)))
             (list :octets-sent sent :octets-received received)
             (loop for name in *counted-stages*
                   when (getf stages name) nconc (list name (getf stages name)))
             (added-plist exemplar call)
             (list :stages (stages-plist stages))))))

(defun quiet-p (call)
  "True if CALL is logged only if it fails."
  (let ((method (call-rpc-method call)))
    (and method (method:rpc-method-quiet method))))

;;; The source of observers

(defmethod rpc:check-observer ((source access-log)) source)

(defmethod rpc:observer-for ((source access-log) &key target loop &allow-other-keys)
  (let ((draw (make-draw (access-log-threshold source) loop))
        (failures (access-log-failures source))
        (function (or (access-log-function source) #'log-event))
        (exemplar (access-log-exemplar source)))
    (declare (type function draw))
    ;; a caller within the image is trusted
    (when (and failures loop) (setf failures (make-failures :loop loop :tell function)))
    (rpc:make-observer :trusted t
     :call-ended (lambda (call)
                   (when (or (and (funcall draw) (not (quiet-p call)))
                             (and failures
                                  (not (eq :ok (call-status call)))
                                  (or (not (failures-p failures))
                                      (log-failure-p failures call))))
                     (loop:guarding (:observer-error)
                       (apply function :info :call (call-plist call target exemplar))))))))
