;;;; Members, and their form in the store and in messages. A peer's description of itself is checked
;;;; here, against the limits of proto/cluster/membership.proto.
;;;;
;;;; A member of CLUSTER is a server that is registered as CLUSTER (etcd/discovery): the same entry
;;;; gives channels its address and nodes its generation. The object "member" in the entry's
;;;; Metadata has the fields that only nodes need. A server that was registered without a
;;;; generation, as by REGISTER or by another program, is a member, too; its generation is the
;;;; revision that made its entry.

(in-package #:clgrpc.cluster)

(defconstant +longest-name+ 253
  "The maximum number of characters of the name of a member or a cluster.")
(defconstant +longest-address+ 256 "The maximum number of octets of an address.")
(defconstant +longest-instance+ 64 "The maximum number of octets of a process's instance name.")
(defconstant +most-labels+ 32 "The maximum number of labels of a member.")
(defconstant +longest-labels+ 1024
  "The maximum number of octets of all labels of a member together.")
(defconstant +shortest-lease+ 2 "The shortest lease in seconds; etcd checks twice a second for
leases that have ended.")
(defconstant +longest-lease+ 3600
  "The longest lease in seconds: a dead member can remain listed for that time.")

(defstruct (cluster-member (:conc-name member-) (:copier nil))
  "A member of a cluster, as it was at some revision of the store."
  (name "" :type string :read-only t)   ; the name, unique among present members
  ;; distinguishes the member from all earlier members of its name
  (generation 0 :type (signed-byte 64) :read-only t)
  (address "" :type string :read-only t) ; the address at which the member serves
  ;; the member's announced next action
  (state :serving :type (member :serving :draining) :read-only t)
  (labels '() :type list :read-only t)  ; an alist of strings, its description of itself
  ;; the seconds of its lease unless renewed; 0: unknown
  (lease-seconds 10 :type (signed-byte 32) :read-only t)
  (instance "" :type string :read-only t) ; the name of its process
  (joined 0 :type rational :read-only t)) ; when the member joined, in seconds of Unix time

(declaim (sb-ext:freeze-type cluster-member))

(document-functions
  make-cluster-member "Return a member, as JOIN-CLUSTER takes it, with :name, :address, :labels, an
alist of strings, :lease-seconds, 10 by default, :instance, the name of its process, and :joined, in
seconds of Unix time."
  cluster-member-p "True of members of a cluster."
  member-name "The name of MEMBER, a string. At any time only one member has a given name."
  member-generation "The generation of MEMBER, an integer greater than the generation of every
  earlier member of the same name."
  member-address "The address at which MEMBER serves, a string such as \"10.0.0.7:50051\"."
  member-state ":serving, or :draining once MEMBER has announced that it leaves."
  member-labels "Return the labels that MEMBER has given itself, an alist of strings."
  member-lease-seconds "How many seconds MEMBER remains a member if its lease is not renewed; 0 if
MEMBER has not reported this."
  member-instance "Return the instance name of MEMBER's process, a string, perhaps empty."
  member-joined "When MEMBER joined, in seconds of Unix time, by the clock of the node it asked.")

(defmethod print-object ((member cluster-member) stream)
  (print-unreadable-object (member stream)
    (write-string "member " stream)
    (write-printable (member-name member) stream :limit 80)
    (format stream ", generation ~D, " (member-generation member))
    (write-printable (member-address member) stream :limit 80)
    (format stream "~:[~;, draining~]" (eq :draining (member-state member)))))

;;; Names and keys

(defun name-p (text)
  "True if TEXT may name a member or a cluster."
  (and (stringp text)
       (<= 1 (length text) +longest-name+)
       (every (lambda (char)
                (and (< (char-code char) 128) (or (alphanumericp char) (find char "._-:[]"))))
              text)))

(defun check-name (text what)
  "Return TEXT. Signal MISUSE unless TEXT is a valid name; WHAT, a text, describes the thing that
TEXT names."
  (unless (name-p text)
    (misuse "The name of a ~A has 1 to ~D letters, digits and characters of ._-:[], unlike ~A." what
            +longest-name+ (printable-text (princ-to-string text) :limit 300)))
  text)

(defun members-prefix (cluster)
  "The prefix of the keys of the members of CLUSTER, a name."
  (discovery:endpoint-key cluster ""))

(defun member-key (cluster name)
  (discovery:endpoint-key cluster name))

(defun check-member (member)
  "Return MEMBER. Signal MISUSE if the description of MEMBER is invalid or too long."
  (flet ((bound (text limit what)
           (when (< limit (length (string-octets text)))
             (misuse "~A has at most ~D octets." what limit))))
    (check-name (member-name member) "member")
    (bound (member-address member) +longest-address+ "An address")
    (bound (member-instance member) +longest-instance+ "An instance")
    (loop:parse-target (member-address member))
    (let ((labels (member-labels member)))
      (unless (every (lambda (label) (and (consp label) (stringp (car label)) (stringp (cdr label))
                                          (plusp (length (car label)))))
                     labels)
        (misuse "Labels are an alist of strings, whose names are not empty."))
      (when (< +most-labels+ (length labels))
        (misuse "A member has at most ~D labels." +most-labels+))
      (bound (apply #'concatenate 'string
                    (loop for (name . value) in labels collect name collect value))
             +longest-labels+ "All labels together have"))
    (unless (or (zerop (member-lease-seconds member))
                (<= +shortest-lease+ (member-lease-seconds member) +longest-lease+))
      (misuse "A lease lasts from ~D to ~D seconds, not ~D." +shortest-lease+ +longest-lease+
              (member-lease-seconds member))))
  member)

;;; As messages

(defun unix-seconds ()
  "The time of day, in seconds of Unix time."
  (values (floor (loop:unix-ns) 1000000000)))

(defun member-message (member)
  "MEMBER as a message of proto/cluster/membership.proto."
  (pb:make-member :name (member-name member) :generation (member-generation member)
                  :address (member-address member)
                  :state (ecase (member-state member)
                           (:serving :member-state-serving)
                           (:draining :member-state-draining))
                  :labels (member-labels member) :lease-seconds (member-lease-seconds member)
                  :instance (member-instance member)
                  :joined (protobuf:unix-time-timestamp (member-joined member))))

(defun message-member (message)
  (make-cluster-member
   :name (pb:member-name message) :generation (pb:member-generation message)
   :address (pb:member-address message)
   :state (if (eq :member-state-draining (pb:member-state message)) :draining :serving)
   :labels (sorted-labels (pb:member-labels message))
   :lease-seconds (pb:member-lease-seconds message) :instance (pb:member-instance message)
   :joined (if (pb:member-joined message)
               (protobuf:timestamp-unix-time (pb:member-joined message))
               0)))

(defun sorted-labels (map)
  "MAP, of a message, as an alist in the order of the names."
  (sort (protobuf:map-alist map) #'string< :key #'car))

;;; Members as entries of the store

(defun member-text (member)
  "The value that the store has for MEMBER."
  (discovery:endpoint-text
   (member-address member) (member-labels member)
   :state (member-state member)
   :metadata `(("member" . (("generation" . ,(member-generation member))
                            ("instance" . ,(member-instance member))
                            ("leaseSeconds" . ,(member-lease-seconds member))
                            ("joined" . ,(floor (member-joined member)))
                            ("labels" . ,(member-labels member)))))))

(defun entry-name (entry cluster)
  "The name of the member that the key of ENTRY, of the store, contains; nil if that is not a valid
name. The key begins with the prefix of CLUSTER's members. Keys are octets, and other programs may
write keys of any octets."
  (let ((name (map 'string #'code-char
                   (subseq (etcd:entry-key-octets entry) (length (members-prefix cluster))))))
    (and (name-p name) name)))

(defun said-member (said name generation)
  "The member NAME that SAID, an endpoint, describes; its generation is GENERATION if SAID has
none."
  (let ((own (cdr (assoc "member" (discovery:endpoint-metadata said) :test #'string=))))
    (flet ((own (key type default)
             (let ((value (and (listp own) (cdr (assoc key own :test #'string=)))))
               (if (typep value type) value default))))
      (make-cluster-member
       :name name :address (discovery:endpoint-address said)
       :state (discovery:endpoint-state said)
       :generation (own "generation" '(and (signed-byte 64) (integer 1)) generation)
       :instance (own "instance" 'string "")
       :lease-seconds (own "leaseSeconds" '(signed-byte 32) 0)
       ;; the range of a Timestamp
       :joined (own "joined" '(integer 0 253402300799) 0)
       :labels (sort (copy-list (own "labels" 'list '())) #'string< :key #'car)))))

(defun parse-entry (entry name)
  "The member NAME that ENTRY describes. Signal a CLGRPC-ERROR if ENTRY describes no member, or a
member that no message can describe."
  (multiple-value-bind (said why) (discovery:read-endpoint entry)
    (unless said (misuse "The entry does not describe a server: ~A." why))
    (check-member (said-member said name (etcd:entry-created entry)))))

(defun entry-member (entry cluster)
  "The member of CLUSTER that ENTRY of the store describes; nil if ENTRY is nil or does not belong
to a member."
  (when-let ((name (and entry (entry-name entry cluster))))
    (handler-case (parse-entry entry name)
      (clgrpc-error (condition)
        (log-event :warning :cluster-entry-unreadable
                   :key (member-key cluster name) :condition (bounded-text condition))
        nil))))

(defun renewed-member (member &key (address (member-address member))
                                (state (member-state member))
                                (generation (member-generation member))
                                (lease-seconds (member-lease-seconds member))
                                (joined (member-joined member)))
  "Return a copy of MEMBER in which the given keywords replace its values."
  (make-cluster-member :name (member-name member) :generation generation
                       :address address :state state
                       :labels (member-labels member) :lease-seconds lease-seconds
                       :instance (member-instance member) :joined joined))
