;;;; What channelz (gRFC A14) keeps of channels, subchannels, servers and sockets whether it is
;;;; served or not: a number for each, which is never used again, and of the first three the last
;;;; events. Numbers are given to connections, events are noted when something rare happens; calls
;;;; pay for neither.
;;;;
;;;; What has happened is in a CHRONICLE, one HAPPENING for each event.
;;;;
;;;; A chronicle is changed by one store, so it can be read from any thread. Whoever has a chronicle
;;;; has it for as long as he lives; a REGISTRY, by which channels and servers are found, holds them
;;;; weakly and forgets them when they are closed.

(in-package #:clgrpc.base)

(defconstant +most-happenings+ 32
  "So many of the last events of a channel, a subchannel or a server are told.")

;;; Numbers

(defstruct (numbering (:copier nil))
  "The numbers that have been given."
  (last 0 :type sb-ext:word))           ; atomic

(declaim (sb-ext:freeze-type numbering))

(sb-ext:define-load-time-global **numbering** (make-numbering))

(defun new-number ()
  "A number from 1 on that nothing else in this process has had. From any thread."
  (1+ (sb-ext:atomic-incf (numbering-last **numbering**))))

;;; Events

(defstruct (happening (:copier nil))
  "Something that has happened to a channel, a subchannel or a server."
  (text "" :type string :read-only t)   ; for people
  (severity :info :type (member :info :warning :error) :read-only t) ; as channelz has it
  (ns 0 :type (unsigned-byte 62) :read-only t) ; when, by the clock of the chronicle's owner
  (child nil :type (or null (unsigned-byte 62)) :read-only t) ; the subchannel's number, or nil
  (child-name "" :type string :read-only t) ; what that is called
  (place 1 :type (unsigned-byte 62) :read-only t)) ; how many events there were with this one

(declaim (sb-ext:freeze-type happening))

(defmethod print-object ((event happening) stream)
  (print-unreadable-object (event stream :type t)
    (format stream "~D ~(~A~) ~A" (happening-place event) (happening-severity event)
            (happening-text event))))

(defstruct (chronicle (:constructor make-chronicle (born-ns &aux (number (new-number))))
                      (:copier nil))
  "A number, and the last events of what has it."
  (number 0 :type (unsigned-byte 62) :read-only t) ; see NEW-NUMBER
  (born-ns 0 :type (unsigned-byte 62) :read-only t) ; when it began
  (happenings '() :type list))          ; newest first, up to twice as many as are told; atomic

(declaim (sb-ext:freeze-type chronicle))

(document-functions
  make-chronicle "A CHRONICLE of what begins at BORN-NS, with a number of its own."
  chronicle-number "The number of CHRONICLE, see NEW-NUMBER."
  chronicle-born-ns "When CHRONICLE began, by its owner's clock, in nanoseconds."
  happening-text "What HAPPENING is, for people."
  happening-severity "How bad HAPPENING is: :info, :warning or :error."
  happening-ns "When HAPPENING was, by the clock of its chronicle's owner, in nanoseconds."
  happening-child "The number of the subchannel that HAPPENING is about, or nil."
  happening-child-name "What the subchannel is called that HAPPENING is about, or \"\".")

(defmethod print-object ((chronicle chronicle) stream)
  (print-unreadable-object (chronicle stream :type t)
    (format stream "~D, ~D events" (chronicle-number chronicle) (chronicle-count chronicle))))

(defun chronicle-count (chronicle)
  "How many events of CHRONICLE there have been."
  (let ((events (chronicle-happenings chronicle)))
    (if events (happening-place (first events)) 0)))

(defun happenings (chronicle)
  "The last events of CHRONICLE, the oldest first. From any thread."
  (let ((events (chronicle-happenings chronicle)))
    (reverse (subseq events 0 (min +most-happenings+ (length events))))))

(defun note-happening (chronicle now text &key (severity :info) child (child-name ""))
  "TEXT has happened at NOW to what CHRONICLE is of; CHILD is the number, CHILD-NAME the name of the
subchannel that it is about, if it is about one. From any thread."
  (loop
    (let* ((events (chronicle-happenings chronicle))
           (place (if events (1+ (happening-place (first events))) 1))
           (event (make-happening :text text :severity severity :ns now :child child
                              :child-name child-name :place place))
           ;; cut only now and then, so that an event does not copy all others
           (kept (if (zerop (mod place +most-happenings+))
                     (subseq events 0 (min (1- +most-happenings+) (length events)))
                     events)))
      (when (eq events (sb-ext:compare-and-swap (chronicle-happenings chronicle)
                                                events (cons event kept)))
        (return event)))))

;;; Registries

(defun make-registry ()
  "A table of what is to be found by GetTopChannels or GetServers, each as a key."
  (make-hash-table :test 'eq :weakness :key :synchronized t))

(defun enter-registry (object registry)
  "OBJECT is among what REGISTRY has. From any thread."
  (setf (gethash object registry) t))

(defun quit-registry (object registry)
  "OBJECT is not among what REGISTRY has any more. From any thread."
  (remhash object registry))

(defun registered (registry)
  "What REGISTRY has, in no order. From any thread."
  (sb-ext:with-locked-hash-table (registry)
    (loop for object being the hash-keys of registry collect object)))
