;;;; Watches: each change of a range of keys is told once, in the order of the revisions, whatever
;;;; breaks meanwhile. A watch knows the revision that the next change may have; it asks for the
;;;; changes from there when its stream has broken, of whatever member can be reached, and passes by
;;;; what it has told before. Only compaction can come between, or a store that has gone back since
;;;; it has lost its data or was restored from older ones; both are told and end the watch.
;;;; A response of many changes may come in fragments, which are gathered until the last is there.
;;;; etcd says that a watch is denied both for want of rights and for want of a valid token: so a
;;;; watch whose client has a user goes on once with a new token before it believes that.
;;;;
;;;; What the responses mean is a function of the watch and the response (NOTE-RESPONSE); the thread
;;;; around it opens streams, waits between them and calls the user.

(in-package #:clgrpc.etcd)

(defconstant +first-pause-ms+ 50 "How long a watch waits before it asks again the first time.")
(defconstant +longest-pause-ms+ 2000 "How long it waits at most.")

(defstruct (change (:constructor make-change (kind entry previous)) (:copier nil))
  "A change that a watch tells."
  (kind :put :type (member :put :removal) :read-only t) ; what was done
  (entry nil :type entry :read-only t)  ; as it is since; of a removal its key and revision
  (previous nil :type (or null entry) :read-only t)) ; as it was, if that was asked for

(declaim (sb-ext:freeze-type change))

(document-functions
  change-kind ":put or :removal, which may be the end of the entry's lease."
  change-entry "The entry as it is since the change. That of a removal has a key, and as
ENTRY-CHANGED the revision that removed it."
  change-previous "The entry as it was before, if the watch was asked for it and it is not
compacted; nil if it was not there.")

(defmethod print-object ((change change) stream)
  (print-unreadable-object (change stream :type t)
    (format stream "~(~A~) ~A" (change-kind change) (change-entry change))))

(defstruct (watch (:constructor %make-watch) (:copier nil))
  "A watch of a range of keys, see the function WATCH."
  (etcd nil :type etcd :read-only t)    ; whose
  (start nil :type octets :read-only t) ; the first key of its range
  (end nil :type octets :read-only t)   ; the end of that, empty for one key
  (filters '() :type list :read-only t) ; what is not to be told, as the messages have it
  (previous nil :type boolean :read-only t) ; tell what was there before, too
  (function nil :type function :read-only t) ; of a list of changes and their revision
  (on-end nil :type (or null function) :read-only t) ; of the ETCD-ERROR that has ended it
  (next-revision 0 :type (signed-byte 64)) ; that the next change has at least; 0: not known yet
  (seen 0 :type (signed-byte 64))       ; the latest revision that etcd has said it is at
  (fragments '() :type list)            ; changes of a response whose last fragment is not there
  (token nil :type (or null string))    ; that its stream was opened with
  (denied nil :type boolean)            ; since it was last open etcd has denied it
  (pause-ms +first-pause-ms+ :type (integer 0 10000)) ; before the next stream
  (random (make-random-state t) :type random-state :read-only t) ; for pauses
  (thread nil)                          ; that runs it
  (ending nil :type (or null function)) ; ends the thread
  (lock (sb-thread:make-mutex :name "clgrpc watch") :read-only t) ; of what follows
  (bell (sb-thread:make-waitqueue :name "clgrpc watch") :read-only t) ; any of that has changed
  (state :opening :type (member :opening :open :ended)) ; :open once etcd has begun it
  (progress 0 :type (signed-byte 64))   ; the revision that the last progress is of; 0: wanted
  (trouble nil :type (or null condition)) ; what has ended it, or keeps it from being opened
  (call nil))                           ; its stream, while it has one

(declaim (sb-ext:freeze-type watch))

(document-functions
  watch-next-revision "The revision that the next change WATCH tells will have, or a later one: from
here another watch would go on.")

(defmethod print-object ((watch watch) stream)
  (print-unreadable-object (watch stream :type t)
    (write-visible (octets-string (watch-start watch)) stream :quoted t :limit 80)
    (format stream "~:[…~;~], ~(~A~), next revision ~D" (zerop (length (watch-end watch)))
            (watch-state watch) (watch-next-revision watch))))

(defun watch-open-p (watch)
  "True until WATCH has ended. From any thread."
  (not (eq :ended (watch-state watch))))

;;; What responses mean

(defun change-of (event)
  "The change that EVENT, a MVCCPB:EVENT, is."
  (make-change (ecase (mvccpb:event-type event)
                 (:put :put)
                 (:delete :removal))
               (entry-of (mvccpb:event-kv event))
               (entry-of (mvccpb:event-prev-kv event))))

(defun note-response (watch response)
  "Take RESPONSE, a WatchResponse, for WATCH. Return the changes in it that WATCH has not told
before, a list. Signal COMPACTED if etcd has no more what it would tell next, or another ETCD-ERROR
if it has ended the stream."
  (let* ((next (watch-next-revision watch))
         (revision (header-revision (pb:watch-response-header response)))
         (events (remove-if (lambda (change) (< (entry-changed (change-entry change)) next))
                            (map 'list #'change-of (pb:watch-response-events response))))
         (changes (append (shiftf (watch-fragments watch) '()) events)))
    (cond ((pb:watch-response-fragment response)
           (setf (watch-fragments watch) (shiftf changes '())))
          ((plusp (pb:watch-response-compact-revision response))
           (error 'compacted :text (format nil "the changes from revision ~D on are compacted" next)
                             :revision (pb:watch-response-compact-revision response)))
          ((pb:watch-response-canceled response)
           (let ((reason (pb:watch-response-cancel-reason response)))
             (error (if (or (search "permission denied" reason)
                            (some (lambda (text) (search text reason)) *stale-token-texts*))
                        'access-denied
                        'unavailable)
                    :text (format nil "etcd has ended the watch: ~A" reason))))
          (changes
           (setf (watch-next-revision watch)
                 (1+ (reduce #'max changes
                             :key (lambda (change) (entry-changed (change-entry change)))))))
          ;; etcd begins behind the revision of this response, unless it was told where
          ((pb:watch-response-created response)
           (when (zerop next) (setf (watch-next-revision watch) (1+ revision))))
          ;; the answer to AWAIT-PROGRESS, which is for all watches of a stream; etcd before 3.4.25
          ;; and 3.5.8 may give it before the changes that it is about, so no stream begins there
          ((minusp (pb:watch-response-watch-id response))
           (setf (watch-progress watch) (max revision (watch-progress watch))))
          ;; there was nothing up to this revision
          ((zerop (length (pb:watch-response-events response)))
           (setf (watch-next-revision watch) (max next (1+ revision)))))
    changes))

(defun creation (watch)
  "The request that has etcd go on with WATCH."
  (pb:make-watch-request
   :create-request (pb:make-watch-create-request
                    :key (watch-start watch) :range-end (watch-end watch)
                    :start-revision (watch-next-revision watch) :progress-notify t :fragment t
                    :filters (watch-filters watch) :prev-kv (watch-previous watch))))

;;; Its thread

(defun set-watch (watch function)
  "Call FUNCTION, which changes WATCH, under its lock, and tell who waits. Do nothing if it has
ended, and return false."
  (sb-thread:with-mutex ((watch-lock watch))
    (when (watch-open-p watch)
      (funcall function)
      (sb-thread:condition-broadcast (watch-bell watch))
      t)))

(defun end-watch (watch condition)
  "WATCH has ended, by CONDITION, or by its user if that is nil. Return false if it had."
  (set-watch watch (lambda ()
                     (setf (watch-state watch) :ended
                           (watch-trouble watch) condition))))

(defun tell-changes (watch changes)
  "Call WATCH's function for the CHANGES of each revision."
  (when changes (note (watch-etcd watch) #'meter-changes (length changes)))
  (loop while changes
        do (let* ((revision (entry-changed (change-entry (first changes))))
                  (end (position revision changes :test #'/=
                                 :key (lambda (change)
                                        (entry-changed (change-entry change))))))
             (funcall (watch-function watch) (subseq changes 0 end) revision)
             (setf changes (and end (nthcdr end changes))))))

(defun open-stream (watch)
  "A new stream for WATCH, with a token of its user's if it has one."
  (let* ((etcd (watch-etcd watch))
         (token (current-token etcd (loop:notice-end (etcd-timeout etcd)))))
    (note etcd #'meter-streams)
    (setf (watch-token watch) token
          (watch-fragments watch) '())
    (watches:watch (etcd-channel etcd) :open
                   :wait-for-ready t
                   :metadata (append (token-metadata token) *require-leader*))))

(defun check-store (watch response)
  "If the member that begins WATCH anew with RESPONSE is at an earlier revision than etcd was, it
may be late. If all of etcd is, it has lost its data or has older ones, and WATCH would wait until
there are as many revisions again: signal FUTURE-REVISION."
  (let ((revision (header-revision (pb:watch-response-header response))))
    (when (and (pb:watch-response-created response) (< revision (watch-seen watch)))
      (let ((now (nth-value 1 (fetch (watch-etcd watch) (watch-start watch)))))
        (when (< now (watch-seen watch))
          (error 'future-revision
                 :text (format nil "the store has gone back from revision ~D to ~D"
                               (watch-seen watch) now)))))
    (setf (watch-seen watch) (max revision (watch-seen watch)))))

(define-condition function-failed (error)
  ((cause :initarg :cause :reader function-failed-cause)) ; what was signalled
  (:documentation "The function of a watch has failed. Whatever it has signalled, also an ETCD-ERROR
or RPC-ERROR of its own calls, says nothing of the watch's stream."))

(defun tell-or-fail (watch changes)
  (handler-case (tell-changes watch changes)
    (error (condition) (error 'function-failed :cause condition))))

(defun follow-stream (watch)
  "Tell what one stream brings, until it breaks or WATCH ends. Signal an ETCD-ERROR in any case."
  (with-etcd-errors
    (rpc:with-call (call (open-stream watch))
      (when (set-watch watch (lambda () (setf (watch-call watch) call)))
        (rpc:send call (creation watch))
        (loop for response = (rpc:receive call)
              while (and response (watch-open-p watch))
              do (check-store watch response)
                 (let ((changes (note-response watch response)))
                   (setf (watch-pause-ms watch) +first-pause-ms+
                         (watch-denied watch) nil)
                   (set-watch watch (lambda () (setf (watch-state watch) :open)))
                   (tell-or-fail watch changes)))))
    (error 'unavailable :text "the stream of a watch has ended")))

(defun denied-once-p (watch condition)
  "True if WATCH, which CONDITION has come to, may go on with a new token, which it then has."
  (let ((etcd (watch-etcd watch)))
    (when (and (etcd-user etcd) (typep condition 'access-denied) (not (watch-denied watch)))
      (setf (watch-denied watch) t)
      (handler-case (renew-token etcd (watch-token watch)
                                 (loop:notice-end (etcd-timeout etcd)))
        ;; the next stream asks again
        ((or unavailable overloaded) () t)
        (etcd-error () nil)))))

(defun pause-watch (watch)
  "Wait before the next stream of WATCH, longer each time, or until it ends."
  (let* ((pause (watch-pause-ms watch))
         (end (loop:notice-end (/ (+ pause (random pause (watch-random watch))) 1000))))
    (setf (watch-pause-ms watch) (min +longest-pause-ms+ (* 2 pause)))
    (sb-thread:with-mutex ((watch-lock watch))
      (loop while (and (watch-open-p watch) (< (now-ns) end))
            do (loop:await-notice (watch-bell watch) (watch-lock watch) end)))))

(defun passing-p (condition)
  "True if a watch goes on after CONDITION."
  (typep condition '(or unavailable overloaded)))

(defun fail-watch (watch condition)
  "CONDITION has ended WATCH: tell its user, unless it had ended."
  (when (end-watch watch condition)
    (remove-ending (watch-etcd watch) (watch-ending watch))
    (when (watch-on-end watch) (funcall (watch-on-end watch) condition))))

(defun run-watch (watch)
  "What the thread of WATCH does."
  (loop while (watch-open-p watch)
        do (handler-case (follow-stream watch)
             (function-failed (failure)
               (let ((condition (function-failed-cause failure)))
                 (log-event :error :etcd-watch-error :condition (princ-to-string condition))
                 (fail-watch watch condition)))
             (error (condition)
               (cond ((denied-once-p watch condition))
                     ((passing-p condition)
                      (set-watch watch (lambda ()
                                         (setf (watch-trouble watch) condition
                                               (watch-call watch) nil)))
                      (pause-watch watch))
                     (t (fail-watch watch condition)))))))

(defun await-opening (watch seconds)
  "Wait until etcd has begun WATCH, or cancel it and signal why it has not within SECONDS."
  (let ((end (loop:notice-end seconds)))
    (sb-thread:with-mutex ((watch-lock watch))
      (loop while (and (eq :opening (watch-state watch)) (< (now-ns) end))
            do (loop:await-notice (watch-bell watch) (watch-lock watch) end)))
    (unless (eq :open (watch-state watch))
      (let ((trouble (watch-trouble watch)))
        (cancel-watch watch)
        (error (or trouble
                   (make-condition 'unavailable :text "no member has begun the watch in time")))))))

(defun watch (etcd function &key key prefix from to revision only previous on-end timeout)
  "Have FUNCTION called with each change of KEY, or of a range of keys (see MAP-ENTRIES), from now
on, or from REVISION on: with a list of the changes of one revision and that revision, in their
order, each once, though connections break and members go meanwhile. Return the watch when etcd has
begun it. ONLY is :puts or :removals for these alone; with PREVIOUS changes say what was there
before. FUNCTION runs on a thread of the watch's own and may wait; an error in it ends the watch.
If the watch ends but by CANCEL-WATCH or CLOSE-ETCD, ON-END is called there with the condition:
COMPACTED if changes that were to be told are no longer in the store, FUTURE-REVISION if etcd is at
an earlier revision than before, since it has lost its data or has older ones. Signal an ETCD-ERROR
if it has not begun within TIMEOUT seconds, by default those of ETCD. From any thread."
  (check-type only (member nil :puts :removals))
  (multiple-value-bind (start end)
      (cond ((and key (or prefix from to)) (misuse "A watch has a KEY or a range, not both."))
            (key (values (key-octets key) (make-octets 0)))
            (t (range-of prefix from to)))
    (let ((watch (%make-watch :etcd etcd :start start :end end :function function :on-end on-end
                              :next-revision (or revision 0) :previous (and previous t)
                              :filters (ecase only
                                         ((nil) '())
                                         (:puts '(:nodelete))
                                         (:removals '(:noput))))))
      (setf (watch-ending watch) (lambda () (cancel-watch watch)))
      (add-ending etcd (watch-ending watch))
      (setf (watch-thread watch) (sb-thread:make-thread #'run-watch :name "clgrpc watch"
                                                                    :arguments (list watch)))
      (await-opening watch (or timeout (etcd-timeout etcd)))
      watch)))

(defun cancel-watch (watch)
  "End WATCH: its function is called no more once this has returned. From any thread; in its
function, that call is the last."
  (let ((call nil) (thread (watch-thread watch)))
    (end-watch watch nil)
    (setf call (sb-thread:with-mutex ((watch-lock watch)) (watch-call watch)))
    (remove-ending (watch-etcd watch) (watch-ending watch))
    (when call (rpc:cancel call))
    (unless (or (null thread) (eq thread sb-thread:*current-thread*))
      (sb-thread:join-thread thread :default nil))
    nil))

(defun ask-for-progress (watch end-ns)
  "Ask for the progress of WATCH once it is open, until END-NS. Signal an ETCD-ERROR if it is not."
  (let ((call (sb-thread:with-mutex ((watch-lock watch))
                (loop until (or (and (eq :open (watch-state watch)) (watch-call watch))
                                (not (watch-open-p watch))
                                (<= end-ns (now-ns)))
                      do (loop:await-notice (watch-bell watch) (watch-lock watch) end-ns))
                (and (watch-open-p watch) (watch-call watch)))))
    (unless call (error 'unavailable :text "the watch is not open"))
    (with-etcd-errors
      (rpc:send call (pb:make-watch-request
                      :progress-request (pb:make-watch-progress-request))))))

(defun await-progress (watch &key timeout)
  "Ask how far WATCH is, and return a revision: all changes up to it have been told. (Of etcd before
3.4.25, or 3.5.8, changes may still follow that were made just before.) Signal an ETCD-ERROR if that
is not known within TIMEOUT seconds, by default those of its client, or the stream breaks meanwhile.
From any thread but the watch's own."
  (let ((end (loop:notice-end (or timeout (etcd-timeout (watch-etcd watch))))))
    (setf (watch-progress watch) 0)
    (ask-for-progress watch end)
    (sb-thread:with-mutex ((watch-lock watch))
      (loop while (and (zerop (watch-progress watch)) (watch-open-p watch) (< (now-ns) end))
            do (loop:await-notice (watch-bell watch) (watch-lock watch) end)))
    (let ((revision (watch-progress watch)))
      (when (zerop revision)
        (error 'unavailable :text "etcd has not told the progress of the watch in time"))
      revision)))
