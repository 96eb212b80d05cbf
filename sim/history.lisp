;;;; The trace: everything that happens in a simulation, in its order. The same seed gives the same
;;;; trace, octet for octet: it contains nothing that depends on the machine, its clock, its
;;;; threads, its memory or its collector. The digest is made as the trace grows, so that two runs
;;;; can be compared without the texts.

(in-package #:clgrpc.sim)

(defstruct (entry (:constructor make-entry (ns where event arguments)) (:copier nil))
  "The record of an EVENT, a keyword, that happened at the time NS, on the host WHERE, or on no host
if that is nil. ARGUMENTS are integers, symbols, strings and octets."
  (ns 0 :type nanoseconds :read-only t) ; the virtual time
  (where nil :type (or null string) :read-only t) ; the name of the host, or nil
  (event nil :type symbol :read-only t) ; a keyword
  (arguments '() :type list :read-only t)) ; integers, symbols, strings and octets

(defstruct (history (:copier nil))
  "The history of a simulation: ENTRIES, oldest first, and a DIGEST of all of them."
  ;; the entries, oldest first
  (entries (make-array 256 :adjustable t :fill-pointer 0) :type vector :read-only t)
  (digest #xCBF29CE484222325 :type word)) ; the digest of all entries

(declaim (sb-ext:freeze-type entry history))

(define-printer (entry entry)
  "~@[~A: ~]~(~A~)" (entry-where entry) (entry-event entry))

(define-printer (history history)
  "~D entries, ~16,'0X" (length (history-entries history)) (history-digest history))

;;; The digest: FNV-1a of 64 bits, over words

(define-hot (digest-word :inline t) ((digest word) (word word)) word
  (ldb (byte 64 0) (* (logxor digest word) #x100000001B3)))

(defun digest-string (digest string)
  (loop for character across (the string string)
        do (setf digest (digest-word digest (char-code character))))
  digest)

(define-hot digest-octets ((digest word) (octets octets)) word
  (loop for octet of-type octet across octets
        do (setf digest (digest-word digest octet)))
  digest)

(defun digest-item (digest item)
  "Return the digest that results when ITEM, an argument of an entry, is added to DIGEST."
  (etypecase item
    (integer (digest-word digest (ldb (byte 64 0) item)))
    (symbol (digest-string digest (symbol-name item)))
    (string (digest-string digest item))
    (octets (digest-octets digest item))))

(defun item-of (object)
  "Return OBJECT itself if it can be an argument of an entry, or else a text for it that is the same
in each run."
  (typecase object
    ((or integer symbol string octets) object)
    (float (format nil "~,6F" object))
    (ratio (princ-to-string object))
    (list (format nil "(~{~A~^ ~})" (mapcar #'item-of object)))
    (condition (princ-to-string object))
    (t (format nil "#<~(~A~)>" (type-of object)))))

(defun record (history ns where event &rest arguments)
  "Add to HISTORY that EVENT has happened at NS on the host named WHERE, or on no host if that is
nil."
  (let ((arguments (mapcar #'item-of arguments))
        (digest (digest-word (history-digest history) ns)))
    (when where (setf digest (digest-string digest where)))
    (setf digest (digest-string digest (symbol-name event)))
    (dolist (item arguments) (setf digest (digest-item digest item)))
    (setf (history-digest history) digest)
    (vector-push-extend (make-entry ns where event arguments) (history-entries history)))
  nil)

(defun item-text (item)
  (typecase item
    (octets (format nil "~D octets ~8,'0X" (length item)
                    (ldb (byte 32 0) (digest-octets 0 item))))
    (keyword (format nil "~(~S~)" item))
    (symbol (format nil "~(~A~)" item))
    (t (princ-to-string item))))

(defun entry-line (entry)
  (format nil "~13,6F ~@[~A: ~]~(~A~)~{ ~A~}"
          (ns-seconds (- (entry-ns entry) (* 1000 +ns-per-second+)))
          (entry-where entry) (entry-event entry) (mapcar #'item-text (entry-arguments entry))))
