;;;; The job of a watch: it joins the stream, handles the responses one after the other, pauses
;;;; after a break before it continues, and calls the user's function. WATCH begins it.

(in-package #:clgrpc.etcd)

(defun end-watch (watch condition)
  "End WATCH because of CONDITION or, if that is nil, because its user wants that. Return false if
WATCH had ended before."
  (prog1 (set-watch watch (lambda ()
                            (setf (watch-state watch) :ended
                                  (watch-failure watch) condition)))
    (keep-fragments watch '())))

(defun tell-changes (watch changes)
  "Call WATCH's function for the CHANGES of each revision."
  (when changes (note (watch-etcd watch) #'meter-changes (length changes)))
  (loop while (and changes (watch-open-p watch))
        do (let* ((revision (entry-changed (change-entry (first changes))))
                  (end (position revision changes :test #'/=
                                 :key (lambda (change)
                                        (entry-changed (change-entry change))))))
             (funcall (watch-function watch) (subseq changes 0 end) revision)
             (setf changes (and end (nthcdr end changes))))))

;;; If the store has lost its data, or another store has the same address, the revisions of the
;;; store are not those of the changes that the user has received.

(defun gone-back (control &rest arguments)
  (error 'future-revision
         :text (format nil "the store has lost data or is another one: ~?" control arguments)))

(defun check-header (watch header)
  "Signal FUTURE-REVISION if HEADER, of a member with the newest data, is older than the last header
of WATCH, or comes from another cluster."
  (let ((revision (header-revision header)) (term (pb:response-header-raft-term header)))
    (when (< revision (watch-seen watch))
      (gone-back "it has gone back from revision ~D to ~D" (watch-seen watch) revision))
    (when (< term (watch-term watch))
      (gone-back "it has gone back from term ~D to ~D" (watch-term watch) term))
    (unless (member (watch-cluster watch) (list 0 (pb:response-header-cluster-id header)))
      (gone-back "it is another cluster"))))

(defun check-mark (watch response)
  "Signal FUTURE-REVISION if the last put that WATCH's user has got differs from RESPONSE, the
RangeResponse for its key and revision."
  (let ((mark (watch-mark watch))
        (there (first (entries-of (pb:range-response-kvs response)))))
    (unless (and there
                 (= (entry-changed mark) (entry-changed there))
                 (= (entry-created mark) (entry-created there))
                 (equalp (entry-value mark) (entry-value there)))
      (gone-back "revision ~D has changed something different" (entry-changed mark)))))

(defun check-store (watch)
  "Signal FUTURE-REVISION if etcd, which begins WATCH again, has an earlier revision or term than
before, because it has lost its data or has older data, or if it is another store. In such a store
WATCH would miss changes, or wait until the store has as many revisions again."
  (flet ((read-key (key revision)
           (let ((response (ask (watch-etcd watch) #'kv:range
                                (range-request key nil :revision revision) nil
                                :twice t)))
             (check-header watch (need-part (pb:range-response-header response)))
             response)))
    (let ((mark (watch-mark watch)))
      (with-cancellation-token ((watch-cancellation-token watch))
        (handler-case
            (when mark
              (return-from check-store
                (check-mark watch (read-key (entry-key-octets mark) (entry-changed mark)))))
          ;; a compacted entry cannot be compared with the mark
          (compacted ()))
        (read-key (watch-start watch) nil)))))

(defun suspicious-p (watch header)
  "True if etcd may not be the same store as before for WATCH, or for its user, who has given it a
mark; HEADER is the header of the response with which the watch continues."
  (or (< (header-revision header) (watch-seen watch))
      (watch-mark watch)
      (and (watch-begun watch)
           (or (/= (pb:response-header-raft-term header) (watch-term watch))
               (/= (pb:response-header-cluster-id header) (watch-cluster watch))))))

(defun note-store (watch response)
  "Note the present revision and term of WATCH's store, which RESPONSE, a WatchResponse, contains."
  (when-let ((header (pb:watch-response-header response)))
    (when (and (pb:watch-response-created response) (suspicious-p watch header))
      (check-store watch))
    (setf (watch-seen watch) (max (pb:response-header-revision header) (watch-seen watch))
          (watch-term watch) (max (pb:response-header-raft-term header) (watch-term watch))
          (watch-cluster watch) (pb:response-header-cluster-id header))))

(defun take-response (watch response)
  "Pass the changes in RESPONSE to the user. Signal an ETCD-ERROR if WATCH cannot continue after the
response."
  (note-store watch response)
  (let ((changes (note-response watch response)))
    (loop:forget-failures (watch-pauses watch))
    (setf (watch-denied watch) nil)
    (set-watch watch (lambda () (setf (watch-state watch) :open
                                      (watch-begun watch) t)))
    (with-function-failed () (tell-changes watch changes))))

(defun failure-of (watch condition)
  "A condition: the reason why WATCH cannot continue at once after CONDITION, which has ended its
stream. Return nil if WATCH can continue, since a new token was fetched."
  (let ((etcd (watch-etcd watch)))
    (if (and (etcd-user etcd) (typep condition 'access-denied) (not (watch-denied watch)))
        (handler-case (with-cancellation-token ((watch-cancellation-token watch))
                        (renew-token etcd (watch-token watch)
                                     (loop:notice-end (etcd-timeout etcd)))
                        (setf (watch-denied watch) t)
                        nil)
          (etcd-error (error) (if (passing-p error) error condition)))
        condition)))

(defun fail-watch (watch condition)
  "End WATCH because of CONDITION, and call its end function. If WATCH has not begun, AWAIT-OPENING
signals CONDITION instead. Do nothing if WATCH has ended before."
  (when (end-watch watch condition)
    (remove-ending (watch-etcd watch) (watch-ending watch))
    (leave-stream watch)
    (loop:end-job (watch-job watch))
    (when (and (watch-begun watch) (watch-on-end watch))
      (loop:guarding (:etcd-watch-error)
        (funcall (watch-on-end watch) condition)))))

(defun meet-failure (watch condition)
  "Handle CONDITION, which keeps WATCH from continuing on its stream; WATCH has left the stream.
Return the seconds until WATCH continues on another stream, nil if WATCH continues at once or has
ended."
  (let ((failure (failure-of watch condition)))
    (cond ((null failure) nil)
          ((passing-p failure)
           (set-watch watch (lambda () (setf (watch-failure watch) failure)))
           (let ((seconds (loop:next-pause (watch-pauses watch))))
             (setf (watch-resume-ns watch) (loop:notice-end seconds))
             seconds))
          (t (fail-watch watch failure)
             nil))))

(defun go-on (watch)
  "Do the next step of WATCH. Return the seconds until the next step, :at-once, or nil if WATCH
waits for a response."
  (let ((next (next-response watch)))
    (handler-case (etypecase next
                    (null (cond ((watch-number watch) (return-from go-on nil))
                                ;; the job was woken, by a response of before, during a pause
                                ((< (loop:world-now) (watch-resume-ns watch))
                                 (return-from go-on (loop:seconds-until (watch-resume-ns watch))))
                                (t (join-stream watch))))
                    ((eql :outrun) (leave-stream watch))
                    (condition (error next))
                    (pb:watch-response (take-response watch next)))
      (function-failed (failure)
        (let ((condition (function-failed-cause failure)))
          (log-event :error :etcd-watch-error :condition (bounded-text condition))
          (fail-watch watch condition)))
      (error (condition)
        (leave-stream watch)
        (return-from go-on (or (meet-failure watch condition) :at-once))))
    :at-once))

(defun attend-watch (watch)
  "Run the job of WATCH once."
  (loop while (watch-open-p watch)
        do (let ((seconds (go-on watch)))
             (unless (eq :at-once seconds) (return seconds)))))

(defun await-opening (watch seconds)
  "Wait until etcd has begun WATCH, which may have ended since. If etcd has not done that within
SECONDS, or if WATCH ends earlier, cancel WATCH and signal the reason."
  (let ((end (loop:notice-end seconds)) (failure nil))
    (sb-thread:with-mutex ((watch-lock watch))
      (loop while (and (eq :opening (watch-state watch)) (< (loop:world-now) end))
            do (loop:await-notice (watch-waitqueue watch) (watch-lock watch) end))
      (unless (watch-begun watch)
        (setf (watch-state watch) :ended ; so that the watch does not begin later
              failure (or (watch-failure watch)
                          (make-condition 'unavailable
                                          :text "no member has begun the watch in time")))
        (sb-thread:condition-broadcast (watch-waitqueue watch))))
    (when failure
      (cancel-watch watch)
      (error failure))))

(defun start-watch (watch timeout)
  "Ask etcd to begin WATCH, and wait until it has, see AWAIT-OPENING. If this thread is unwound
meanwhile, by WITH-TIMEOUT for example, no program has WATCH, and it ends."
  (let ((etcd (watch-etcd watch)) (begun nil))
    (with-undoing ((setf (watch-ending watch) (lambda () (cancel-watch watch))
                         (watch-job watch) (add-job etcd (lambda () (attend-watch watch))))
                   (unless begun (detach-watch watch)))
      (add-ending etcd (watch-ending watch))
      (loop:wake-job (watch-job watch))
      (await-opening watch (or timeout (etcd-timeout etcd)))
      (setf begun t))
    watch))

(defun new-watch (etcd function &key key prefix from to revision after mark only previous on-end)
  "A watch that is not started yet; the arguments are those of WATCH."
  (check-type only (member nil :puts :removals))
  (check-type revision (or null (signed-byte 64)))
  (check-type after (or null (integer 0)))
  (when (and revision after) (misuse "A watch begins at REVISION or AFTER a revision, not both."))
  (multiple-value-bind (start end)
      (cond ((and key (or prefix from to)) (misuse "A watch has a KEY or a range, not both."))
            (key (values (key-octets key) (make-octets 0)))
            (t (range-of prefix from to)))
    (%make-watch :etcd etcd :start start :end end :function function :on-end on-end
                 :next-revision (if after (1+ after) (or revision 0)) :seen (or after 0)
                 :after (and after t) :mark mark
                 :previous (and previous t)
                 :filters (ecase only
                            ((nil) '())
                            (:puts '(:nodelete))
                            (:removals '(:noput))))))

(define-keyword-function watch
    (etcd function &rest options
     &key key prefix from to revision after mark only previous on-end timeout)
  "Watch KEY, or a range of keys (see MAP-ENTRIES). For each revision in order call FUNCTION once
with a list of its changes and the revision, even if connections break and members fail meanwhile.
The watch reports changes from now on, from REVISION on, or after the past revision AFTER. With
AFTER, MARK is nil or an entry of that revision, by which the watch recognizes the store after a
break. Return the watch when etcd has begun it. ONLY, :puts or :removals, omits changes of the other
kind. If PREVIOUS is true, each change has the former entry. FUNCTION runs on a thread for the watch
and may wait, which delays no other watch. An error in FUNCTION ends the watch. If the watch ends
without CANCEL-WATCH or CLOSE-ETCD, ON-END is called on that thread with the condition, perhaps
before WATCH returns: COMPACTED if the next changes are no longer in the store, FUTURE-REVISION if
the store has lost its data, has older data, or is another one. Signal an ETCD-ERROR if etcd has not
begun the watch within TIMEOUT seconds, by default those of ETCD; then ON-END is not called. From
any thread."
  (declare (ignore key prefix from to revision after mark only previous on-end))
  (start-watch (apply #'new-watch etcd function (alexandria:remove-from-plist options :timeout))
               timeout))

(defun detach-watch (watch)
  "End WATCH, whose function may still be running when this returns. Interrupts are off meanwhile,
and the wait is short."
  (sb-sys:without-interrupts
    (end-watch watch nil)
    (when (watch-ending watch) (remove-ending (watch-etcd watch) (watch-ending watch)))
    (end-cancellation-token (watch-cancellation-token watch))
    (leave-stream watch)
    (when (watch-job watch) (loop:end-job (watch-job watch) :seconds 0))))

(defun cancel-watch (watch)
  "End WATCH: once this has returned, WATCH's function is not called again. From any thread; if that
function itself calls this, the present call of it is the last."
  (detach-watch watch)
  (when (watch-job watch) (loop:end-job (watch-job watch)))
  nil)

(defun await-call (watch end-ns)
  "The stream of WATCH once it is open. Signal an ETCD-ERROR if the stream is not open by END-NS."
  (or (sb-thread:with-mutex ((watch-lock watch))
        (loop until (or (and (eq :open (watch-state watch)) (watch-call watch))
                        (not (watch-open-p watch))
                        (<= end-ns (loop:world-now)))
              do (loop:await-notice (watch-waitqueue watch) (watch-lock watch) end-ns))
        (and (watch-open-p watch) (watch-call watch)))
      (error 'unavailable :text "the watch is not open")))

(define-keyword-function await-progress (watch &key (revision 0) timeout)
  "Wait until the user of WATCH has got all changes up to REVISION, and return the revision reached,
REVISION or a later one. (With etcd before 3.4.25, or 3.5.8, changes made just before may still
follow.) The request is repeated if the stream breaks meanwhile, or if no answer arrives: a slow
stream may not answer. Signal an ETCD-ERROR if the progress takes more than TIMEOUT seconds, by
default the timeout of its client, or if WATCH ends. From any thread but that of the watch's
function."
  (check-type revision (integer 0))
  (let ((end (loop:notice-end (or timeout (etcd-timeout (watch-etcd watch)))))
        (count (watch-progress-count watch)))
    (loop
      (let ((call (await-call watch end))
            (again (min end (loop:notice-end +progress-seconds+))))
        (ask-for-progress watch call again)
        (sb-thread:with-mutex ((watch-lock watch))
          (flet ((there-p ()
                   (and (/= count (watch-progress-count watch))
                        (>= (watch-progress watch) revision))))
            (loop until (or (there-p) (not (eq call (watch-call watch)))
                            (not (watch-open-p watch)) (<= again (loop:world-now)))
                  do (loop:await-notice (watch-waitqueue watch) (watch-lock watch) again))
            (when (there-p) (return (watch-progress watch))))))
      (when (<= end (loop:world-now))
        (error 'unavailable :text "etcd has not reported the progress of the watch in time")))))
