;;;; A server logs its refusals: at most one warning a second, however many there are. A warning
;;;; names the limit, the peer and the number of refusals. The first refusal is logged at once; the
;;;; refusals of the next second are logged together at the end of that second.

(in-package #:clgrpc.server)

(defconstant +refusals-told+ 8
  "The maximum number of kinds of refusals that a warning names; all other refusals are counted
together.")

(defstruct (refusals (:copier nil))
  "The refusals of a server that are not logged yet."
  (lock (sb-thread:make-mutex :name "clgrpc refusals") :read-only t) ; guards all other slots
  (counts '() :type list)               ; lists of option, peer and how often
  (quiet-until 0 :type nanoseconds)     ; nothing is logged before this time
  (scheduled nil :type boolean))        ; a timer will log the refusals

(declaim (sb-ext:freeze-type refusals))

(defmethod print-object ((refusals refusals) stream)
  (print-unreadable-object (refusals stream :type t)
    (write-string (refusals-text (refusals-counts refusals)) stream)))

(defun refusals-text (counts)
  "COUNTS, a list of (OPTION PEER NUMBER), as text."
  (format nil "~{~A~^, ~}" (loop for (option peer count) in counts
                                 collect (format nil "~D of ~A (~(~A~))" count peer option))))

(defun count-refusal (refusals option peer)
  "Count in REFUSALS that PEER was refused because of OPTION. The caller must hold the lock of
REFUSALS."
  (let* ((counts (refusals-counts refusals))
         (row (or (find-if (lambda (row) (and (eq option (first row)) (string= peer (second row))))
                           counts)
                  (and (<= +refusals-told+ (length counts))
                       (first counts)))))
    (cond ((null row) (setf (refusals-counts refusals) (append counts (list (list option peer 1)))))
          (t (incf (third row))
             (unless (and (eq option (first row)) (string= peer (second row)))
               (setf (second row) "several"))))))

(defun tell-refusals (server)
  "Log the refusals of SERVER, if there are any."
  (let* ((refusals (server-refusals server))
         (counts (sb-thread:with-mutex ((refusals-lock refusals))
                   (setf (refusals-scheduled refusals) nil
                         (refusals-quiet-until refusals)
                         (+ (loop:read-clock (server-loop-loop (first (server-loops server))))
                            +ns-per-second+))
                   (shiftf (refusals-counts refusals) '()))))
    (when counts
      (log-event :warning :refused :what (refusals-text counts) :server server))))

(defun complain (server-loop option peer)
  "Log that a call or connection of PEER was refused or ended because of OPTION, a keyword, and
notify the observer. On SERVER-LOOP's loop."
  (rpc:observe refused (server-loop-observer server-loop) option peer)
  (let* ((server (server-loop-server server-loop))
         (refusals (server-refusals server))
         (loop (server-loop-loop server-loop))
         (wait (sb-thread:with-mutex ((refusals-lock refusals))
                 (count-refusal refusals option peer)
                 (if (refusals-scheduled refusals)
                     nil
                     (let ((wait (- (refusals-quiet-until refusals) (loop:read-clock loop))))
                       (setf (refusals-scheduled refusals) (plusp wait))
                       wait)))))
    (cond ((null wait))
          ((plusp wait)
           (loop:start-timer loop
                             (loop:make-lasting-timer loop #'tell-refusals server)
                             (+ (loop:event-loop-now loop) wait)))
          (t (tell-refusals server)))))
