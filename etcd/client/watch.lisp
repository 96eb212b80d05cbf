;;;; Watches: each change of a range of keys reaches the user once, in the order of the revisions,
;;;; even if connections break meanwhile. A watch knows the least revision of the next change. When
;;;; its stream has broken, it asks any member that can be reached for the changes from there, and
;;;; skips those that its user has got before. Only two events interrupt this: compaction, and a
;;;; store that has gone back because it has lost its data or was restored from older data. Both are
;;;; reported and end the watch. A response of many changes may arrive in fragments: the changes of
;;;; the last revision are kept until all of them have arrived. etcd refuses a watch alike for
;;;; missing rights and for an invalid token: so a watch whose client has a user first tries once
;;;; with a new token.
;;;;
;;;; The meaning of a response is a function of the watch and the response (NOTE-RESPONSE). One
;;;; stream serves all watches of a client (multiplex.lisp). Each watch has a job, which handles its
;;;; responses one after the other, pauses after a break before it continues, and calls the user's
;;;; function.

(in-package #:clgrpc.etcd)

(defconstant +first-pause-seconds+ 1/20
  "How long a watch waits before it asks again the first time.")
(defconstant +longest-pause-seconds+ 2 "How long it waits at most.")
(defconstant +progress-seconds+ 1/4 "How long progress is awaited before it is requested again.")

(defstruct (change (:constructor make-change (kind entry previous)) (:copier nil))
  "A change reported by a watch."
  (kind :put :type (member :put :removal) :read-only t) ; its kind
  (entry nil :type entry :read-only t)  ; as it is since; of a removal its key and revision
  (previous nil :type (or null entry) :read-only t)) ; as it was, if that was asked for

(declaim (sb-ext:freeze-type change))

(document-functions
  change-kind "Return the kind of CHANGE: :put, or :removal, which may be due to the end of the
entry's lease."
  change-entry "The entry as it is since the change. After a removal it has only a key, and as
ENTRY-CHANGED the revision of the removal."
  change-previous "Return the entry as it was before the change, if the watch has :previous and the
entry is not compacted; nil if it did not exist.")

(defmethod print-object ((change change) stream)
  (print-unreadable-object (change stream :type t)
    (format stream "~(~A~) ~A" (change-kind change) (change-entry change))))

(defstruct (watch (:constructor %make-watch) (:copier nil))
  "A watch of a range of keys, see the function WATCH."
  (etcd nil :type etcd :read-only t)    ; whose
  (start nil :type octets :read-only t) ; the first key of its range
  (end nil :type octets :read-only t)   ; the end of that, empty for one key
  (filters '() :type list :read-only t) ; kinds of changes to leave out, as the messages have them
  (previous nil :type boolean :read-only t) ; bring the entry before a change, too
  (function nil :type function :read-only t) ; of a list of changes and their revision
  (on-end nil :type (or null function) :read-only t) ; of the ETCD-ERROR that has ended it
  (after nil :type boolean)             ; the user knows all changes before NEXT-REVISION
  (next-revision 0 :type (signed-byte 64)) ; that the next change has at least; 0: not known yet
  (seen 0 :type (signed-byte 64))       ; the latest revision that etcd has said it is at
  (term 0 :type (unsigned-byte 64))     ; the term of its leaders that it was in then
  (cluster 0 :type (unsigned-byte 64))  ; the number of its cluster, 0 while unknown
  (mark nil :type (or null entry))      ; the last put that the user has got
  (fragments '() :type list)            ; changes of a revision of which more may follow
  (token nil :type (or null string))    ; that its stream was opened with
  (denied nil :type boolean)            ; since it was last open etcd has denied it
  ;; before the next stream
  (pauses (loop:make-pauses +first-pause-seconds+ +longest-pause-seconds+)
   :type loop:pauses :read-only t)
  ;; the call that its job waits for
  (cancellation-token (make-cancellation-token) :type cancellation-token :read-only t)
  (ending nil :type (or null function)) ; ends it
  (job nil :type (or null loop:job))    ; takes RESPONSES
  (lock (sb-thread:make-mutex :name "clgrpc watch") :read-only t) ; of the slots below
  (bell (sb-thread:make-waitqueue :name "clgrpc watch") :read-only t) ; any of that has changed
  ;; the queue, each item with its octets: responses, then :outrun or the end of the stream
  (responses (make-fifo) :type fifo :read-only t)
  (waiting-octets 0 :type (integer 0))  ; of those
  (number nil :type (or null (integer 1))) ; by which the stream knows it, while it is one of it
  (state :opening :type (member :opening :open :ended)) ; :open once etcd has begun it
  (begun nil :type boolean)             ; etcd has begun it once
  (progress 0 :type (signed-byte 64))   ; the revision that the last progress is of
  (progress-count 0 :type (integer 0))  ; the number of progress notices
  (failure nil :type (or null condition)) ; the cause of its end, or of its not being opened
  (call nil))                           ; the stream, while it has one

(declaim (sb-ext:freeze-type watch))

(document-functions
  watch-next-revision "Return a revision at or before that of the next change of WATCH; the user has
got all earlier changes. Another watch that begins there misses nothing.")

(defmethod print-object ((watch watch) stream)
  (print-unreadable-object (watch stream :type t)
    (write-printable (octets-string (watch-start watch)) stream :quoted t :limit 80)
    (format stream "~:[…~;~], ~(~A~), next revision ~D" (zerop (length (watch-end watch)))
            (watch-state watch) (watch-next-revision watch))))

(defun watch-open-p (watch)
  "True until WATCH has ended. From any thread."
  (not (eq :ended (watch-state watch))))

;;; The meaning of responses

(defun change-of (event)
  "The change that EVENT, a MVCCPB:EVENT, is."
  (make-change (case (mvccpb:event-type event)
                 (:put :put)
                 (:delete :removal)
                 (t (error 'unavailable :text "etcd has sent a change of an unknown kind")))
               (entry-of (mvccpb:event-kv event))
               (entry-of (mvccpb:event-prev-kv event))))

(defun note-changes (watch changes)
  "Handle CHANGES, the next changes of WATCH."
  (dolist (change changes)
    (let ((entry (change-entry change)))
      (setf (watch-next-revision watch) (max (1+ (entry-changed entry))
                                             (watch-next-revision watch)))
      (when (eq :put (change-kind change)) (setf (watch-mark watch) entry)))))

(defun split-last-revision (changes)
  "Two values: those of CHANGES before the last revision among them, and those of that revision."
  (flet ((revision-of (change) (entry-changed (change-entry change))))
    (let ((at (and changes (position (revision-of (first (last changes))) changes
                                     :key #'revision-of))))
      (if at
          (values (subseq changes 0 at) (nthcdr at changes))
          (values '() '())))))

(defun note-response (watch response)
  "Take RESPONSE, a WatchResponse, for WATCH. Return the changes in it that WATCH's user has not got
before, a list. Signal COMPACTED if etcd has compacted the next changes, or another ETCD-ERROR if it
has ended the stream."
  (let* ((next (watch-next-revision watch))
         (revision (header-revision (pb:watch-response-header response)))
         (events (remove-if (lambda (change) (< (entry-changed (change-entry change)) next))
                            (map 'list #'change-of (pb:watch-response-events response))))
         (changes (append (shiftf (watch-fragments watch) '()) events)))
    (cond ((pb:watch-response-fragment response)
           (setf (values changes (watch-fragments watch)) (split-last-revision changes))
           (note-changes watch changes))
          ((plusp (pb:watch-response-compact-revision response))
           (error 'compacted :text (format nil "the changes from revision ~D on are compacted" next)
                             :revision (pb:watch-response-compact-revision response)))
          ((pb:watch-response-canceled response)
           (let ((reason (pb:watch-response-cancel-reason response)))
             (error (cond ((text-condition reason))
                          ((some (lambda (text) (search text reason)) *stale-token-texts*)
                           'access-denied)
                          (t 'unavailable))
                    :text (format nil "etcd has ended the watch: ~A" reason))))
          (changes (note-changes watch changes))
          ;; etcd begins after the revision of this response, unless the request named another
          ((pb:watch-response-created response)
           (when (zerop next) (setf (watch-next-revision watch) (1+ revision))))
          ;; the answer to AWAIT-PROGRESS, which is for all watches of a stream; etcd before 3.4.25
          ;; and 3.5.8 may give it before the changes that it is about, so no stream begins there
          ((minusp (pb:watch-response-watch-id response))
           (setf (watch-progress watch) revision)
           (incf (watch-progress-count watch)))
          ;; there was nothing up to this revision
          ((zerop (length (pb:watch-response-events response)))
           (setf (watch-next-revision watch) (max next (1+ revision)))))
    changes))

(defun start-revision (watch)
  "The revision from which to request the changes of WATCH from etcd, 0 for those from now on. If
the changes of the revision before the next one are known, request from that one: etcd before
3.4.36, 3.5.18 and 3.6 omits a removal at the very revision up to which it is compacted, and reports
COMPACTED only for earlier ones."
  (let ((next (watch-next-revision watch)))
    (if (or (watch-begun watch) (watch-after watch))
        (max 1 (1- next))
        next)))

(defun creation (watch)
  "The request by which etcd begins WATCH, or begins it again."
  (pb:make-watch-request
   :create-request (pb:make-watch-create-request
                    :watch-id (watch-number watch)
                    :key (watch-start watch) :range-end (watch-end watch)
                    :start-revision (start-revision watch) :progress-notify t :fragment t
                    :filters (watch-filters watch) :prev-kv (watch-previous watch))))

;;; Its job

(defun set-watch (watch function)
  "Call FUNCTION, which changes WATCH, under its lock, and wake the threads that wait. Do nothing if
WATCH has ended, and return false."
  (sb-thread:with-mutex ((watch-lock watch))
    (when (watch-open-p watch)
      (funcall function)
      (sb-thread:condition-broadcast (watch-bell watch))
      t)))

(defun end-watch (watch condition)
  "End WATCH because of CONDITION, or for its user if that is nil. Return false if it had ended
before."
  (set-watch watch (lambda ()
                     (setf (watch-state watch) :ended
                           (watch-failure watch) condition))))

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

;;; The store may have lost its data, or be another one that is found under the old address: then
;;; its revisions are not those of the changes that the user has got.

(defun gone-back (control &rest arguments)
  (error 'future-revision
         :text (format nil "the store has lost data or is another one: ~?" control arguments)))

(defun check-header (watch header)
  "Signal FUTURE-REVISION if HEADER, of a member with the newest data, is older than the last one of
WATCH, or comes from another cluster."
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
WATCH would wait until it has as many revisions again, or miss changes."
  (flet ((read-key (key revision)
           (let ((response (ask (watch-etcd watch) #'kv:range
                                (range-request key nil :revision revision) nil
                                :twice t)))
             (check-header watch (pb:range-response-header response))
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
mark; HEADER is that of the response with which the watch continues."
  (or (< (header-revision header) (watch-seen watch))
      (watch-mark watch)
      (and (watch-begun watch)
           (or (/= (pb:response-header-raft-term header) (watch-term watch))
               (/= (pb:response-header-cluster-id header) (watch-cluster watch))))))

(defun note-store (watch response)
  "RESPONSE, a WatchResponse, contains the present revision and term of WATCH's store."
  (let ((header (pb:watch-response-header response)))
    (when header
      (when (and (pb:watch-response-created response) (suspicious-p watch header))
        (check-store watch))
      (setf (watch-seen watch) (max (pb:response-header-revision header) (watch-seen watch))
            (watch-term watch) (max (pb:response-header-raft-term header) (watch-term watch))
            (watch-cluster watch) (pb:response-header-cluster-id header)))))

(defun take-response (watch response)
  "Pass the changes in RESPONSE to the user. Signal an ETCD-ERROR if WATCH cannot continue after
it."
  (note-store watch response)
  (let ((changes (note-response watch response)))
    (loop:forget-failures (watch-pauses watch))
    (setf (watch-denied watch) nil)
    (set-watch watch (lambda () (setf (watch-state watch) :open
                                      (watch-begun watch) t)))
    (with-function-failed () (tell-changes watch changes))))

(defun failure-of (watch condition)
  "The reason why WATCH cannot continue at once after CONDITION, which has ended its stream: a
condition; or nil if it can, since it has a new token."
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
  "Handle CONDITION, which keeps WATCH from continuing on its stream; it has left that. Return the
seconds until it continues on another stream, nil if it does so at once or has ended."
  (let ((failure (failure-of watch condition)))
    (cond ((null failure) nil)
          ((passing-p failure)
           (set-watch watch (lambda () (setf (watch-failure watch) failure)))
           (loop:next-pause (watch-pauses watch)))
          (t (fail-watch watch failure)
             nil))))

(defun go-on (watch)
  "Do the next step of WATCH. Return the seconds until the next step, :at-once, or nil if WATCH
waits for a response."
  (let ((next (next-response watch)))
    (handler-case (etypecase next
                    (null (if (watch-number watch)
                              (return-from go-on nil)
                              (join-stream watch)))
                    ((eql :outrun) (leave-stream watch))
                    (condition (error next))
                    (pb:watch-response (take-response watch next)))
      (function-failed (failure)
        (let ((condition (function-failed-cause failure)))
          (log-event :error :etcd-watch-error :condition (princ-to-string condition))
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
  "Wait until etcd has begun WATCH, which may have ended since. If etcd has not within SECONDS, or
WATCH ends before, cancel it and signal the reason."
  (let ((end (loop:notice-end seconds)) (failure nil))
    (sb-thread:with-mutex ((watch-lock watch))
      (loop while (and (eq :opening (watch-state watch)) (< (loop:world-now) end))
            do (loop:await-notice (watch-bell watch) (watch-lock watch) end))
      (unless (watch-begun watch)
        (setf (watch-state watch) :ended ; so that it is not begun after all
              failure (or (watch-failure watch)
                          (make-condition 'unavailable
                                          :text "no member has begun the watch in time")))
        (sb-thread:condition-broadcast (watch-bell watch))))
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
  "A watch that has not been started; the arguments are those of WATCH."
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

(defun watch (etcd function &rest options
              &key key prefix from to revision after mark only previous on-end timeout)
  "Watch KEY, or a range of keys (see MAP-ENTRIES). For each revision in order call FUNCTION once
with a list of its changes and the revision, even if connections break and members fail meanwhile.
The changes are those from now on; from REVISION on; or AFTER a past revision of the store. MARK is
then an entry of that revision, or nil, by which the store is recognized after a break. Return the
watch when etcd has begun it. ONLY, :puts or :removals, omits the others. If PREVIOUS is true, each
change has the former entry. FUNCTION runs on a thread for the watch and may wait, which delays no
other watch. An error in it ends the watch. If the watch ends without CANCEL-WATCH or CLOSE-ETCD,
ON-END is called on that thread with the condition, perhaps before this returns: COMPACTED if the
next changes are no longer in the store, FUTURE-REVISION if the store has lost its data, has older
data, or is another one. Signal an ETCD-ERROR if etcd has not begun it within TIMEOUT seconds, by
default those of ETCD; then ON-END is not called. From any thread."
  (declare (ignore key prefix from to revision after mark only previous on-end))
  (start-watch (apply #'new-watch etcd function (alexandria:remove-from-plist options :timeout))
               timeout))

(defun detach-watch (watch)
  "End WATCH, whose function may still be running when this returns. This is not interrupted, and
does not wait long."
  (sb-sys:without-interrupts
    (end-watch watch nil)
    (when (watch-ending watch) (remove-ending (watch-etcd watch) (watch-ending watch)))
    (end-cancellation-token (watch-cancellation-token watch))
    (leave-stream watch)
    (when (watch-job watch) (loop:end-job (watch-job watch) :seconds 0))))

(defun cancel-watch (watch)
  "End WATCH: its function is called no more once this has returned. From any thread; in its
function, that call is the last."
  (detach-watch watch)
  (when (watch-job watch) (loop:end-job (watch-job watch)))
  nil)

(defun await-call (watch end-ns)
  "The stream of WATCH once it is open. Signal an ETCD-ERROR if it is not by END-NS."
  (or (sb-thread:with-mutex ((watch-lock watch))
        (loop until (or (and (eq :open (watch-state watch)) (watch-call watch))
                        (not (watch-open-p watch))
                        (<= end-ns (loop:world-now)))
              do (loop:await-notice (watch-bell watch) (watch-lock watch) end-ns))
        (and (watch-open-p watch) (watch-call watch)))
      (error 'unavailable :text "the watch is not open")))

(defun await-progress (watch &key (revision 0) timeout)
  "Wait until the user of WATCH has got all changes up to REVISION, and return the revision reached,
REVISION or a later one. (With etcd before 3.4.25, or 3.5.8, changes made just before may still
follow.) The request is repeated if the stream breaks meanwhile, or if there is no answer: a slow
stream may not answer. Signal an ETCD-ERROR if that takes more than TIMEOUT seconds, by default
those of its client, or if WATCH ends. From any thread but that of the watch's function."
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
                  do (loop:await-notice (watch-bell watch) (watch-lock watch) again))
            (when (there-p) (return (watch-progress watch))))))
      (when (<= end (loop:world-now))
        (error 'unavailable :text "etcd has not told the progress of the watch in time")))))
