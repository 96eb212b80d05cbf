;;;; Further objects of users on a loop: functions called in each turn, functions that other threads
;;;; trigger, and functions called when a descriptor of the user's is readable or writable.

(in-package #:clgrpc.async)

;;; Each turn

(defstruct (idler (:include handle) (:conc-name %idler-) (:copier nil))
  "A function that is called in each turn."
  (callback nil :type callback)         ; the function, without arguments
  (event-cb nil :type callback))        ; gets errors in CALLBACK

(defun idle (function &key event-cb (loop *event-loop*))
  "Call FUNCTION, without arguments, in each turn of LOOP, until FREE-IDLER or CANCEL is called with
the idler, which this function returns. Meanwhile LOOP does not sleep. EVENT-CB gets errors in
FUNCTION. From any thread."
  (let* ((loop (the-loop loop))
         (idler (make-idler :loop loop :callback function :event-cb event-cb)))
    (on-loop (loop)
      (begin-use idler)
      (loop:defer loop #'run-idler idler))
    idler))

(defun run-idler (idler)
  (unless (idler-freed-p idler)
    (loop:defer (handle-loop idler) #'run-idler idler)
    (with-callback (idler (%idler-event-cb idler)) (funcall (%idler-callback idler)))))

(defun idler-freed-p (idler)
  "True if IDLER has ended, so that its function is no longer called. On its loop."
  (eq :idle (handle-use idler)))

(defun free-idler (idler)
  "End IDLER: its function is no longer called. From any thread."
  (cancel idler))

(defmethod cancel ((idler idler) &optional text)
  (declare (ignore text))
  (end-handle idler #'end-use))

;;; From other threads

(defstruct (notifier (:include handle) (:constructor %make-notifier) (:conc-name %notifier-)
                     (:copier nil))
  "A function that is called on the loop when other threads trigger it."
  (callback nil :type callback)         ; the function, without arguments
  (event-cb nil :type callback)         ; gets errors in CALLBACK
  (single-shot t :type boolean)         ; the first call frees the notifier
  (freed nil :type boolean))            ; true once CALLBACK is not called any more

(defun make-notifier (function &key event-cb (single-shot t) (loop *event-loop*))
  "Return a notifier: each call of TRIGGER-NOTIFIER with it, in any thread, makes LOOP call
FUNCTION, without arguments. If SINGLE-SHOT is true, the first call frees the notifier. Until the
notifier is freed, by that call or by FREE-NOTIFIER, it keeps LOOP from ending. EVENT-CB gets errors
in FUNCTION. POST calls a function on a loop without a notifier. From any thread."
  (let* ((loop (the-loop loop))
         (notifier (%make-notifier :loop loop :callback function :event-cb event-cb
                                   :single-shot (and single-shot t))))
    (on-loop (loop) (begin-use notifier))
    notifier))

(defun trigger-notifier (notifier)
  "Call NOTIFIER's function on its loop. Signal MISUSE if NOTIFIER is freed or its loop has stopped.
From any thread."
  (when (%notifier-freed notifier) (misuse "~A is freed." notifier))
  (let ((loop (handle-loop notifier)))
    (unless (post loop (lambda () (run-notifier notifier))) (misuse "~A has stopped." loop))
    nil))

(defun run-notifier (notifier)
  (unless (%notifier-freed notifier)
    (when (%notifier-single-shot notifier) (end-notifier notifier))
    (with-callback (notifier (%notifier-event-cb notifier))
      (funcall (%notifier-callback notifier)))))

(defun end-notifier (notifier)
  (setf (%notifier-freed notifier) t)
  (end-use notifier))

(defun free-notifier (notifier)
  "End NOTIFIER: its function is no longer called. From any thread."
  (cancel notifier))

(defun notifier-freed-p (notifier)
  "True if NOTIFIER has ended, so that its function is no longer called. From any thread."
  (%notifier-freed notifier))

(defmethod cancel ((notifier notifier) &optional text)
  (declare (ignore text))
  (end-handle notifier #'end-notifier))

;;; Descriptors. To the user the watches are level-triggered: after each callback the descriptor is
;;; added to the poller again, which then reports events that still hold.

(defstruct (watched-descriptor (:include loop:source) (:copier nil))
  "The loop's side of a DESCRIPTOR-WATCH."
  (watch nil))                          ; the DESCRIPTOR-WATCH

(defstruct (descriptor-watch (:include handle) (:conc-name %watch-) (:constructor %make-watch)
                             (:copier nil))
  "A function that is called when a descriptor of the user's is readable or writable."
  (descriptor -1 :type fixnum)          ; the user's descriptor, which the user closes
  (flags 0 :type (unsigned-byte 32))    ; the events that the user wants, see POLL-FLAGS
  (callback nil :type callback)         ; the function, which is called with the events
  (event-cb nil :type callback)         ; gets errors in CALLBACK
  (source nil :type (or null watched-descriptor))) ; the loop's own watch

(defmethod loop:interest ((source watched-descriptor))
  (%watch-flags (watched-descriptor-watch source)))

(defun poll (descriptor function &key event-cb (poll-for '(:readable :writable)) socket
                                   (loop *event-loop*))
  "Call (FUNCTION events) on LOOP again and again while DESCRIPTOR is :readable or :writable. EVENTS
is the list of these states that hold at present; states that are not in the list POLL-FOR are
ignored. Return a poller; end it with FREE-POLLER or CANCEL before DESCRIPTOR is closed. EVENT-CB
gets errors in FUNCTION. SOCKET has no effect. Signal SOCKET-ERROR if DESCRIPTOR cannot be watched,
or LOOP watches it already. On LOOP."
  (declare (ignore socket))
  (let* ((loop (the-loop loop))
         (watch (%make-watch :loop loop :descriptor descriptor :callback function :event-cb event-cb
                            :flags (poll-flags poll-for))))
    (setf (%watch-source watch)
          (make-watched-descriptor :loop loop :watch watch :on-event #'watch-event
                                   :on-release (lambda (source)
                                                 (end-watch (watched-descriptor-watch source)))))
    (add-watch watch)
    (begin-use watch)
    watch))

(defun poll-flags (names)
  (logior (if (member :readable names) (logior loop:+readable+ loop:+ended+ loop:+failed+) 0)
          (if (member :writable names) (logior loop:+writable+ loop:+failed+) 0)))

(defun add-watch (watch)
  (let ((result (loop:add-source (%watch-source watch) (%watch-descriptor watch))))
    (when (os:failed-p result)
      (error (loop:errno-condition result "watch"
                                   (format nil "descriptor ~D" (%watch-descriptor watch)))))))

(defun watch-event (source flags)
  (let* ((watch (watched-descriptor-watch source))
         (found (logand flags (%watch-flags watch))))
    (flet ((found-p (name) (logtest found (poll-flags (list name)))))
      (unless (zerop found)
        (with-callback (watch (%watch-event-cb watch))
          (funcall (%watch-callback watch) (remove-if-not #'found-p '(:readable :writable))))
        (unless (poller-freed-p watch)
          (loop:remove-source source)
          (add-watch watch))))))

(defun end-watch (watch)
  (unless (poller-freed-p watch)
    (loop:remove-source (%watch-source watch))
    (end-use watch)))

(defun free-poller (watch)
  "Stop watching the descriptor of WATCH, which POLL has returned. From any thread."
  (cancel watch))

(defun poller-freed-p (watch)
  "True if WATCH, which POLL has returned, has ended and no longer watches its descriptor. On its
loop."
  (eq :idle (handle-use watch)))

(defmethod cancel ((watch descriptor-watch) &optional text)
  (declare (ignore text))
  (end-handle watch #'end-watch))
