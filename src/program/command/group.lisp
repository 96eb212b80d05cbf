;;;; Options of servers' command lines that other systems define. A loaded system adds a group of
;;;; options; an option of another system is refused with the name of the system to load.

(in-package #:clgrpc.command)

(defstruct (group (:copier nil))
  "Options that a system defines."
  (system "" :type string)              ; the system's name
  (options '() :type list)              ; the options, ARGUMENTs
  ;; a function that is called before the server starts, with the plist of the command line, and
  ;; returns observers for the server
  (observers nil :type (or symbol function))
  ;; a function of a server, the plist of the command line and a function of a list of lines, which
  ;; it calls while the server has the requested features
  (around nil :type (or symbol function)))

(defglobal **groups** '())              ; GROUPs; the list is replaced, never changed

(defparameter *absent-options*
  '(("--register" "clgrpc-etcd/discovery") ("--register-as" "clgrpc-etcd/discovery")
    ("--weight" "clgrpc-etcd/discovery") ("--zone" "clgrpc-etcd/discovery")
    ("--console" "clgrpc-tools/console"))
  "Options of other systems, each with the system that defines it.")

(defun add-group (system options around &key observers)
  "Make the command lines of servers accept OPTIONS, a list of ARGUMENTs, which SYSTEM defines.
AROUND and OBSERVERS are functions, or symbols that name functions, or nil: see CALL-WITH-GROUPS and
OBSERVERS-OF-GROUPS. From any thread."
  (let ((group (make-group :system system :options options :around around
                           :observers observers)))
    (sb-ext:atomic-update **groups**
                          (lambda (groups)
                            (append (remove system groups :key #'group-system :test #'string=)
                                    (list group))))
    group))

(defun all-group-options ()
  "The options of all groups."
  (loop for group in **groups** append (group-options group)))

(defun observers-of-groups (given)
  "The observers that GIVEN, the plist of a command line, requests from the groups, after the
observers in its :OBSERVER, a list. The :CREDENTIALS of GIVEN are the server's, or nil."
  (let ((observers (getf given :observer)))
    (dolist (group **groups** observers)
      (when (group-observers group)
        (setf observers (append observers
                                (funcall (group-observers group)
                                         (list* :observer observers given))))))))

(defun refuse-absent (name)
  "If the option NAME belongs to a system that is not loaded, refuse it, and name the system."
  (let ((system (second (find name *absent-options* :key #'first :test #'string=))))
    (when system
      (refuse "~A needs the system ~A: load it before, (asdf:load-system ~S)" name system system))))

(defun call-with-groups (server given function)
  "Give SERVER the features that GIVEN requests from the groups, and call FUNCTION with a list of
lines that describe the features; these last until FUNCTION returns. GIVEN is the plist of a command
line with SERVER's :OBSERVER, a list, and :CREDENTIALS."
  (labels ((call-with (groups lines)
             (if groups
                 (funcall (group-around (first groups)) server given
                          (lambda (more) (call-with (rest groups) (append lines more))))
                 (funcall function lines))))
    (call-with **groups** '())))
