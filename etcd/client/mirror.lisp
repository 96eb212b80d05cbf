;;;; Mirrors: a mirror passes on all entries of a range, then each change of them. A watch alone
;;;; ends when its next changes are compacted. A mirror then fetches all entries again and watches
;;;; from there, so a program that keeps a copy of the range only has to replace it. A mirror also
;;;; fetches all entries again when the store has older data than before, or has lost its data.
;;;;
;;;; A mirror is a job of its client. The job fetches the entries, passes them to the function and
;;;; begins a watch whenever there is none. While there is a watch, its job passes the changes to
;;;; the function.

(in-package #:clgrpc.etcd)

(defconstant +mirror-pause-seconds+ 1/2 "How long a mirror waits before it fetches entries again.")
(defconstant +mirror-reach-seconds+ 5
  "How long the connection to etcd may take before the user of a mirror gets an error.")
(defconstant +mirror-page+ 100 "The number of entries that one request fetches.")
(defconstant +shortest-mirror-page+ 4 "The number of entries that one request fetches after
failures. It is small because each entry may have 1.5 MB.")

(defstruct (mirror (:constructor %make-mirror (etcd function range most on-end on-error))
                   (:copier nil))
  "A mirror, as MIRROR returns it."
  (etcd nil :type etcd :read-only t)    ; the client to which the mirror belongs
  ;; a function of :entries or :changes, a list of these, and a revision
  (function nil :type function :read-only t)
  (range '() :type list :read-only t)   ; the range of keys, a plist
  (most nil :type (or null index) :read-only t) ; the most entries that FUNCTION gets
  (on-end nil :type (or null function) :read-only t) ; a function of the condition that has ended it
  ;; a function of a condition that has not ended the mirror, or nil
  (on-error nil :type (or null function) :read-only t)
  ;; the call that the mirror waits for while it fetches
  (cancellation-token (make-cancellation-token) :type cancellation-token :read-only t)
  (job nil :type (or null loop:job))    ; the job that fetches and watches
  (page +mirror-page+ :type index)      ; how many entries are fetched at a time
  ;; the pauses before the mirror fetches entries again
  (pauses (loop:make-pauses +mirror-pause-seconds+ +mirror-pause-seconds+)
   :type loop:pauses :read-only t)
  (ending nil :type (or null function)) ; a function that ends the mirror, called by CLOSE-ETCD
  (lock (sb-thread:make-mutex :name "clgrpc mirror") :read-only t) ; guards the slots below
  (watch nil :type (or null watch))     ; the mirror's present watch
  (failure nil :type (or null condition)) ; the condition with which its watch ended
  (ended nil :type boolean))            ; the mirror was cancelled, or has failed

(declaim (sb-ext:freeze-type mirror))

(document-functions
  mirror-watch "Return the watch that reports the changes of MIRROR, for AWAIT-PROGRESS; nil while
MIRROR has no watch.")

(define-printer (mirror mirror)
  "~{~(~S~) ~S~^ ~}~:[~;, ended~]" (mirror-range mirror) (mirror-ended mirror))

(defmacro with-mirror ((mirror) &body body)
  "Evaluate BODY with the lock of MIRROR. BODY is not interrupted."
  `(sb-sys:without-interrupts
     (sb-thread:with-mutex ((mirror-lock ,mirror)) ,@body)))

(defun tell-mirror (mirror kind items revision)
  "Call the function of MIRROR. If that function signals an error, signal FUNCTION-FAILED, because
the error does not come from etcd."
  (unless (mirror-ended mirror)
    (with-function-failed () (funcall (mirror-function mirror) kind items revision))))

(defun newest-entry (entries)
  "The entry of ENTRIES that was changed last; nil if ENTRIES are empty."
  (and entries
       (reduce (lambda (one other) (if (> (entry-changed one) (entry-changed other)) one other))
               entries)))

(defun note-watch-end (mirror watch condition)
  "Handle the end of WATCH, the watch of MIRROR, with CONDITION."
  (with-mirror (mirror)
    (when (eq watch (mirror-watch mirror))
      (setf (mirror-watch mirror) nil
            (mirror-failure mirror) condition)))
  (loop:wake-job (mirror-job mirror)))

(defun watch-mirror (mirror entries revision timeout)
  "Watch the entries of MIRROR, after ENTRIES, of REVISION, were passed to its function. Signal an
ETCD-ERROR if the watch has not begun within TIMEOUT seconds."
  (let ((watch nil) (begun nil))
    (setf watch (apply #'new-watch (mirror-etcd mirror)
                       (lambda (changes revision) (tell-mirror mirror :changes changes revision))
                       :after revision :mark (newest-entry entries)
                       :on-end (lambda (condition) (note-watch-end mirror watch condition))
                       (mirror-range mirror)))
    ;; a thread that cancels the mirror ends the mirror's watch, and waits for it
    (when (with-mirror (mirror)
            (unless (mirror-ended mirror) (setf (mirror-watch mirror) watch)))
      (unwind-protect (progn (start-watch watch timeout)
                             (setf begun t))
        (unless begun
          (with-mirror (mirror) (setf (mirror-watch mirror) nil)))))))

(defun begin-mirror (mirror timeout)
  "Pass all entries of MIRROR to its function and watch them, within TIMEOUT seconds for each
request. Signal an ETCD-ERROR, or FUNCTION-FAILED."
  (when (mirror-on-error mirror)
    ;; a fetch would wait for etcd until its own deadline, and the user would not learn why
    (reach (mirror-etcd mirror) :timeout +mirror-reach-seconds+))
  (multiple-value-bind (entries revision)
      (with-cancellation-token ((mirror-cancellation-token mirror))
        (apply #'fetch-entries (mirror-etcd mirror) :timeout timeout :page (mirror-page mirror)
                                                    :limit (mirror-most mirror)
                                                    (mirror-range mirror)))
    (tell-mirror mirror :entries entries revision)
    (watch-mirror mirror entries revision timeout)))

(defun end-mirror (mirror)
  "End MIRROR. Return two values: true, or false if MIRROR had ended before; and its watch.
Interrupts are off meanwhile."
  (sb-sys:without-interrupts
    (multiple-value-prog1
        (with-mirror (mirror)
          (values (not (shiftf (mirror-ended mirror) t)) (mirror-watch mirror)))
      (end-cancellation-token (mirror-cancellation-token mirror))
      (remove-ending (mirror-etcd mirror) (mirror-ending mirror)))))

(defun meet-mirror-failure (mirror condition)
  "Handle CONDITION, because of which MIRROR cannot continue. Return the seconds until the mirror
tries again, or nil if this failure has ended the mirror."
  (let ((cause (if (typep condition 'function-failed) (function-failed-cause condition) condition)))
    (setf (mirror-page mirror) (max +shortest-mirror-page+ (floor (mirror-page mirror) 8)))
    (cond ((mirror-on-error mirror) (funcall (mirror-on-error mirror) cause))
          ((or (typep condition '(or compacted future-revision)) (passing-p condition)))
          ((and (end-mirror mirror) (mirror-on-end mirror)) (funcall (mirror-on-end mirror) cause)))
    (and (not (mirror-ended mirror)) (loop:next-pause (mirror-pauses mirror)))))

(defun attend-mirror (mirror)
  "Run the job of MIRROR once: if there is no watch, begin again. Return the seconds until the
mirror tries to begin again, or nil."
  (let ((failure (with-mirror (mirror) (shiftf (mirror-failure mirror) nil))))
    (handler-case
        (cond ((or (mirror-ended mirror) (mirror-watch mirror)) nil)
              ((typep failure '(or null compacted future-revision))
               (begin-mirror mirror nil)
               (setf (mirror-page mirror) +mirror-page+)
               nil)
              (t (meet-mirror-failure mirror failure)))
      (error (condition) (meet-mirror-failure mirror condition)))))

(define-keyword-function mirror (etcd function &key key prefix from to most on-end on-error timeout)
  "Mirror a range (see MAP-ENTRIES), or KEY alone. Call FUNCTION first with :entries, a list of all
its entries, at most MOST, and their revision; then, for each revision that changes some of them,
with :changes, a list of these changes, and the revision. If the next changes are compacted, because
no member could be reached for so long, or if the store has lost its data, all this begins again
with :entries. Return the mirror. When this returns the first call of FUNCTION has returned; later
calls follow one at a time, on a thread of the mirror's own. If the mirror ends without
CANCEL-MIRROR or CLOSE-ETCD, because FUNCTION has failed or the user has lost the rights, ON-END is
called on that thread with the condition. Signal an ETCD-ERROR if the mirror cannot begin; each
request may take TIMEOUT seconds, by default the timeout of ETCD. If ON-ERROR, a function of a
condition, is given, this returns at once, and the mirror begins when it can. ON-ERROR is called
with each error, after which the mirror continues. From any thread."
  (let ((mirror (%make-mirror etcd function
                              (append (when key
                                        (let ((octets (key-octets key)))
                                          (list :from octets :to (next-key octets))))
                                      (when prefix (list :prefix prefix))
                                      (when from (list :from from))
                                      (when to (list :to to)))
                              most on-end on-error))
        (begun nil))
    (with-undoing ((setf (mirror-ending mirror) (lambda () (cancel-mirror mirror))
                         (mirror-job mirror) (add-job etcd (lambda () (attend-mirror mirror))))
                   (unless begun (detach-mirror mirror)))
      (add-ending etcd (mirror-ending mirror))
      (if on-error
          (loop:wake-job (mirror-job mirror))
          (handler-case (begin-mirror mirror timeout)
            (function-failed (failure) (error (function-failed-cause failure)))))
      (setf begun t))
    mirror))

(defun refresh-mirror (mirror)
  "Make MIRROR pass all entries to its function again. From any thread but that of its function."
  (let ((watch nil) (done nil))
    (flet ((end-watch-and-wake ()
             (when watch (cancel-watch watch))
             (loop:wake-job (mirror-job mirror))))
      (with-undoing ((setf watch (with-mirror (mirror) (shiftf (mirror-watch mirror) nil)))
                     ;; without a watch, and not woken, it would never call its function again
                     (unless done (run-in-background (mirror-etcd mirror) #'end-watch-and-wake)))
        (end-watch-and-wake)
        (setf done t)))))

(defun detach-mirror (mirror)
  "End MIRROR, whose function may still be running when this returns, and return its watch, or nil.
Interrupts are off meanwhile, so this waits for nothing that takes long."
  (sb-sys:without-interrupts
    (let ((watch (nth-value 1 (end-mirror mirror))))
      (when watch (detach-watch watch))
      (loop:end-job (mirror-job mirror) :seconds 0)
      watch)))

(defun cancel-mirror (mirror)
  "End MIRROR: once this has returned, MIRROR's function is not called again. From any thread;
within the mirror's function, the present call of the function is the last."
  (let ((watch (detach-mirror mirror)))
    (when watch (cancel-watch watch))
    (loop:end-job (mirror-job mirror))
    nil))
