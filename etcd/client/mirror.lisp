;;;; Mirrors: all entries of a range, then each change of them. A watch alone ends when the changes
;;;; that it would tell next are compacted; a mirror then fetches all entries again and watches from
;;;; there, so that whoever keeps a copy of the range has only to replace it. So it does when the
;;;; store comes back with older data, or none.

(in-package #:clgrpc.etcd)

(defconstant +mirror-pause-seconds+ 1/2 "How long a mirror waits before it fetches entries again.")

(defstruct (mirror (:constructor %make-mirror (etcd function range on-end)) (:copier nil))
  "What MIRROR returns."
  (etcd nil :type etcd :read-only t)    ; whose
  (function nil :type function :read-only t) ; of :entries or :changes, a list of these, a revision
  (range '() :type list :read-only t)   ; which keys, a plist
  (on-end nil :type (or null function) :read-only t) ; of the condition that has ended it
  (errand (make-errand) :type errand :read-only t) ; what it waits for while it is mended
  (lock (sb-thread:make-mutex :name "clgrpc mirror") :read-only t) ; of what follows
  ;; before it fetches entries again
  (pauses (loop:make-pauses +mirror-pause-seconds+ +mirror-pause-seconds+)
   :type loop:pauses :read-only t)
  (watch nil :type (or null watch))     ; its present one, on whose thread it is mended
  (ending nil :type (or null function)) ; ends it
  (ended nil :type boolean))            ; it was cancelled, or has failed

(declaim (sb-ext:freeze-type mirror))

(defmethod print-object ((mirror mirror) stream)
  (print-unreadable-object (mirror stream :type t)
    (format stream "~{~(~S~) ~S~^ ~}~:[~;, ended~]" (mirror-range mirror) (mirror-ended mirror))))

(defun end-mirror (mirror)
  "MIRROR tells nothing any more. Return false if it had ended; and its watch."
  (multiple-value-prog1
      (sb-thread:with-mutex ((mirror-lock mirror))
        (values (not (shiftf (mirror-ended mirror) t)) (mirror-watch mirror)))
    (end-errand (mirror-errand mirror))
    (remove-ending (mirror-etcd mirror) (mirror-ending mirror))))

(defun set-mirror-watch (mirror watch)
  "WATCH is the present one of MIRROR from now on. Return false if MIRROR has ended."
  (sb-thread:with-mutex ((mirror-lock mirror))
    (setf (mirror-watch mirror) watch)
    (not (mirror-ended mirror))))

(defun tell-mirror (mirror kind items revision)
  (unless (mirror-ended mirror)
    (funcall (mirror-function mirror) kind items revision)))

(defun mirror-entries (mirror timeout)
  "All entries of MIRROR, and their revision. Signal an ETCD-ERROR, after TIMEOUT seconds for each
request at most."
  (with-errand ((and (mirror-watch mirror) (mirror-errand mirror)))
    (apply #'fetch-entries (mirror-etcd mirror) :timeout timeout (mirror-range mirror))))

(defun newest-entry (entries)
  "That of ENTRIES which was changed last, or nil."
  (and entries
       (reduce (lambda (one other) (if (> (entry-changed one) (entry-changed other)) one other))
               entries)))

(defun watch-mirror (mirror entries revision timeout)
  "Watch the entries of MIRROR, which were told as ENTRIES, of REVISION; from when that has begun
all else is up to the thread of that watch. Signal an ETCD-ERROR if it has not within TIMEOUT
seconds."
  (let ((before (mirror-watch mirror)) (begun nil)
        (watch (apply #'new-watch (mirror-etcd mirror)
                      (lambda (changes revision) (tell-mirror mirror :changes changes revision))
                      :after revision :mark (newest-entry entries)
                      :on-end (lambda (condition) (mend-mirror mirror condition))
                      (mirror-range mirror))))
    ;; who cancels the mirror ends, and waits for, the watch that it has then
    (when (set-mirror-watch mirror watch)
      (unwind-protect (progn (start-watch watch timeout)
                             (setf begun t))
        (unless begun (set-mirror-watch mirror before))))))

(defun mendable-p (condition)
  "True if a mirror that CONDITION has come to begins anew."
  (or (typep condition '(or compacted future-revision)) (passing-p condition)))

(defun fail-mirror (mirror condition)
  "CONDITION has ended MIRROR: tell its user, unless it had ended."
  (when (and (end-mirror mirror) (mirror-on-end mirror))
    (funcall (mirror-on-end mirror) condition)))

(defun mend-mirror (mirror condition)
  "The watch of MIRROR has ended with CONDITION: begin anew if changes were compacted, or the store
has lost its data, else end it. On the thread of that watch."
  (loop while (and (mendable-p condition) (not (mirror-ended mirror)))
        do (handler-case
               (multiple-value-bind (entries revision) (mirror-entries mirror nil)
                 (handler-case (tell-mirror mirror :entries entries revision)
                   ;; whatever it is, it says nothing of etcd
                   (serious-condition (condition) (return (fail-mirror mirror condition))))
                 (return (watch-mirror mirror entries revision nil)))
             (etcd-error (error) (setf condition error)))
           (with-errand ((mirror-errand mirror))
             (pause-errand (loop:notice-end (loop:next-pause (mirror-pauses mirror)))))
        finally (fail-mirror mirror condition)))

(defun mirror (etcd function &key prefix from to on-end timeout)
  "Have FUNCTION called with :entries, a list of all entries of a range (see MAP-ENTRIES) and the
revision that they are of; then for each revision that changes some of them with :changes, the list
of these, and the revision. If changes that were to be told are compacted, since no member could be
reached for so long, or the store has lost its data, all follows anew from :entries on. Return the
mirror; the first call of FUNCTION has returned then, the others come one at a time on a thread of
its own. If it ends but by CANCEL-MIRROR or CLOSE-ETCD, since FUNCTION has failed or the rights are
gone, ON-END is called there with the condition. Signal an ETCD-ERROR if it cannot begin within
TIMEOUT seconds for each request, by default those of ETCD. From any thread."
  (let ((mirror (%make-mirror etcd function
                              (append (when prefix (list :prefix prefix))
                                      (when from (list :from from))
                                      (when to (list :to to)))
                              on-end)))
    (let ((begun nil))
      (setf (mirror-ending mirror) (lambda () (cancel-mirror mirror)))
      (add-ending etcd (mirror-ending mirror))
      (unwind-protect
           (multiple-value-bind (entries revision) (mirror-entries mirror timeout)
             (tell-mirror mirror :entries entries revision)
             (watch-mirror mirror entries revision timeout)
             (setf begun t))
        (unless begun (end-mirror mirror))))
    mirror))

(defun cancel-mirror (mirror)
  "End MIRROR: its function is called no more once this has returned. From any thread; in its
function, that call is the last."
  (let ((watch (nth-value 1 (end-mirror mirror))))
    (when watch (cancel-watch watch))
    nil))
