;;;; Entries of the store, in the form for users.

(in-package #:clgrpc.etcd)

(defstruct (entry (:constructor %make-entry (key-octets value created changed version lease))
                  (:copier nil))
  "An entry of the store at some revision."
  (key-octets (make-octets 0) :type octets :read-only t) ; the entry's key
  (value (make-octets 0) :type octets :read-only t) ; the entry's value
  (created 0 :type (signed-byte 64) :read-only t) ; the revision that made the entry
  (changed 0 :type (signed-byte 64) :read-only t) ; the revision that put its value
  (version 0 :type (signed-byte 64) :read-only t) ; how often the entry was put since it was made
  (lease 0 :type (signed-byte 64) :read-only t)) ; the number of the lease the entry ends with, or 0

(declaim (sb-ext:freeze-type entry))

(document-functions
  entry-p "True of entries."
  entry-key-octets "The key of ENTRY as octets."
  entry-value "The value of ENTRY, octets."
  entry-created "The revision of the store at which ENTRY was created."
  entry-changed "The revision of the store at which ENTRY got its value."
  entry-version "How often ENTRY was put since it was made, at least 1."
  entry-lease "The number of the lease with which ENTRY ends, 0 for none.")

(defun entry-key (entry)
  "The key of ENTRY, which is UTF-8, as a string. From any thread."
  (octets-string (entry-key-octets entry)))

(defun entry-text (entry)
  "The value of ENTRY, which is UTF-8, as a string. From any thread."
  (octets-string (entry-value entry)))

(defmethod print-object ((entry entry) stream)
  (print-unreadable-object (entry stream :type t)
    (write-key (entry-key-octets entry) stream)
    (format stream " ~D octets, revision ~D" (length (entry-value entry)) (entry-changed entry))))

(defun entry-of (message)
  "The entry that MESSAGE, a MVCCPB:KEY-VALUE, describes; nil for nil."
  (and message
       (%make-entry (mvccpb:key-value-key message) (mvccpb:key-value-value message)
                    (mvccpb:key-value-create-revision message)
                    (mvccpb:key-value-mod-revision message)
                    (mvccpb:key-value-version message) (mvccpb:key-value-lease message))))

(defun entries-of (messages)
  (map 'list #'entry-of messages))
