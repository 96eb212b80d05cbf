;;;; The files that stand for unix sockets: their identity, their mode, removing them; and files
;;;; that are for their owner alone from the start. Paths are octets, as the kernel takes them. File
;;;; data come from statx(2), since its structure is the same on all processors.

(in-package #:clgrpc.os)

(define-constants
  (+at-fdcwd+ "AT_FDCWD" -100)
  (+at-symlink-nofollow+ "AT_SYMLINK_NOFOLLOW" #x100)
  (+statx-basic-stats+ "STATX_BASIC_STATS" #x7FF)
  (+statx-octets+ "sizeof (struct statx)" 256)
  (+statx-mode+ "offsetof (struct statx, stx_mode)" 28)
  (+statx-inode+ "offsetof (struct statx, stx_ino)" 32)
  (+statx-device+ "offsetof (struct statx, stx_dev_major)" 136)
  (+file-type-mask+ "S_IFMT" #o170000)
  (+file-type-socket+ "S_IFSOCK" #o140000)
  (+file-type-regular+ "S_IFREG" #o100000)
  (+o-wronly+ "O_WRONLY" 1)
  (+o-creat+ "O_CREAT" #o100)
  (+o-excl+ "O_EXCL" #o200)
  (+o-cloexec+ "O_CLOEXEC" #o2000000)
  (+enoent+ "ENOENT" 2))

(defmacro with-path ((sap path) &body body)
  "Evaluate BODY with SAP pointing to the octets PATH and a NUL."
  (let ((octets (gensym "OCTETS")))
    `(let ((,octets (concatenate 'octets ,path '(0))))
       (with-pinned-objects (,octets)
         (let ((,sap (vector-sap ,octets)))
           ,@body)))))

(defun remove-file (path)
  "Remove the file PATH."
  (with-path (sap path)
    (syscall ("unlink" int) (system-area-pointer sap))))

(defun set-file-mode (path mode)
  "Let the users whom MODE names, as for chmod, use the file PATH."
  (with-path (sap path)
    (syscall ("chmod" int) (system-area-pointer sap) ((unsigned 32) mode))))

(defun create-file (path mode)
  "Make the file PATH, which there must not be yet, for the users whom MODE names, less the
process's umask. Return a descriptor to write to it, or a failed result."
  (with-path (sap path)
    (syscall ("open" int) (system-area-pointer sap)
             (int (logior +o-wronly+ +o-creat+ +o-excl+ +o-cloexec+)) ((unsigned 32) mode))))

(defun set-socket-mode (socket mode)
  "Let the file that SOCKET, a unix one, will be bound to get MODE, less the process's umask."
  (syscall ("fchmod" int) (int socket) ((unsigned 32) mode)))

(defun file-identity (path type)
  "The identity of the file at PATH, a list that differs from those of all other files, now and
later; NIL if what is there is not of TYPE, of +FILE-TYPE-MASK+."
  (let ((status (make-octets +statx-octets+)))
    (with-path (sap path)
      (with-pinned-objects (status)
        (let ((result (syscall ("statx" int) (int +at-fdcwd+) (system-area-pointer sap)
                               (int +at-symlink-nofollow+) ((unsigned 32) +statx-basic-stats+)
                               (system-area-pointer (vector-sap status)))))
          (unless (or (failed-p result)
                      (/= type (logand +file-type-mask+ (u32le status +statx-mode+))))
            (list (u64le status +statx-inode+) (u64le status +statx-device+))))))))

(defun socket-file-identity (path)
  "The identity of the socket at PATH, as of FILE-IDENTITY; NIL if PATH is no socket."
  (file-identity path +file-type-socket+))

(defun regular-file-p (path)
  "Whether a regular file is at PATH, no link to one."
  (and (file-identity path +file-type-regular+) t))
